// Lets kernels that are compiled for AVX3_DL use the 512-bit instructions of VNNI: Highway 1.0.3 enables the VEX form
// (avxvnni) in their place. Include after <hwy/highway.h>, once a target (no guard), before HWY_BEFORE_NAMESPACE.
#if HWY_TARGET == HWY_AVX3_DL
#undef HWY_TARGET_STR
#define HWY_TARGET_STR \
  HWY_TARGET_STR_AVX3  \
  ",vpclmulqdq,avx512vbmi,avx512vbmi2,vaes,avxvnni,avx512bitalg,avx512vpopcntdq,avx512vnni"
#endif
