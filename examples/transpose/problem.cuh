// The problem: y[j, i] = x[i, j].  x: (m, n), y: (n, m), both row-major.
#pragma once
#include "common/real.cuh"
#ifndef SHAPE_M
#define SHAPE_M 8192   // rows of x
#define SHAPE_N 8192   // columns of x
#endif

constexpr unsigned M = SHAPE_M, N = SHAPE_N;
