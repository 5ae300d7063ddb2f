// What a launch does that begins while the one before it on its stream still runs (PTX ISA, "griddepcontrol"; compute
// capability 9.0). In a launch without that attribute they do nothing.
#pragma once

// The next launch may begin once all blocks have come here.
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Waits until the launch before is over, and all that it wrote can be seen.
__device__ __forceinline__ void wait_for_launch_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
