// The workspace as a kernel's last parameter, which it has where several blocks share an output (split.cuh): where
// SPLIT, a macro that whoever includes this defines first, is above 1.
#pragma once

#ifndef SPLIT
#define SPLIT 1
#endif
#if SPLIT > 1
#define WORKSPACE_PARAMETER , unsigned char* __restrict__ workspace
#else
#define WORKSPACE_PARAMETER
[[maybe_unused]] constexpr unsigned char* workspace = nullptr;
#endif
