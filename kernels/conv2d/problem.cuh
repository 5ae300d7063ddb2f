// The problem: Y = act(conv(X, W) + b), baked in as constants (conv/sizes.cuh has the layouts).
#pragma once
#include "conv/sizes.cuh"
