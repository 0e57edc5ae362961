// All kernels for one instruction set. Compiled once for each, with ISA naming it; isa.cpp chooses.
#include "attention.h"
#include "linear.h"
#include "ops.h"

extern const Kernels ISA;
#ifdef __AVX512BF16__
const Kernels ISA = {store_entries, attend, rms_norm, silu_mul, rope, linear, keep_steps};
#else
const Kernels ISA = {store_entries, attend, rms_norm, silu_mul, rope, nullptr, nullptr};
#endif
