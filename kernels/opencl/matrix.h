/* What prelude/matrix.h takes from the OpenCL dialect. */
#define GK_LOCAL_DYNAMIC(T, name, count) __local __attribute__((aligned(1024))) T name[count]
#ifdef GK_PTX
/* Inline PTX for matrix cores, where the host knows that the compiler takes it: pointers to local memory are addresses in it. */
#define GK_MATRIX_LOCAL_KB 48
#define asm __asm__
GK_FN gk_u32 gk_local_address(__local const void* p) { return (gk_u32)(size_t)p; }
#endif
