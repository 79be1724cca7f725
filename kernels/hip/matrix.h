/* What prelude/matrix.h takes from the HIP dialect. AMD's matrix cores are not used yet. */
#define GK_LOCAL_DYNAMIC(T, name, count) extern __shared__ __attribute__((aligned(1024))) T name[]
#if defined(__HIP_PLATFORM_NVIDIA__) && __CUDA_ARCH__ >= 800
/* Inline PTX for matrix cores: of sm_80, or of sm_90a. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define GK_PTX 90
#else
#define GK_PTX 80
#endif
GK_FN gk_u32 gk_local_address(const void* p) { return (gk_u32)__cvta_generic_to_shared(p); }
#endif
