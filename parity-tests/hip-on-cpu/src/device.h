/* What HIP has built in for code of AMD's devices, on the host. Precedes every unit; the names of its own begin with host_.
 *
 * The library rewrites HOST_KERNEL and HOST_SHARED in the preprocessed text: kernels get a function that calls them with an array of arguments, shared
 * memory becomes static memory of a section that the library finds. */
#include <math.h>
#include <stddef.h>

#define __global__ HOST_KERNEL
#define __launch_bounds__(threads) HOST_BOUNDS(threads)
#define __shared__ HOST_SHARED
#define __device__
/* Not forced: what is inlined everywhere takes the sanitizers minutes. */
#define __forceinline__ inline

typedef struct { unsigned x, y, z; } host_dim;

/* Of the work-item that runs. */
typedef struct {
    host_dim thread, block, blocks, threads;
    unsigned lane;
} host_item;

typedef struct {
    const host_item* (*item)(void);
    void (*barrier)(void);
    /* The value of another lane of the wave; all lanes that have not ended take part. */
    unsigned (*permute)(unsigned lane, unsigned value);
} host_calls;

/* Set by the library when it has loaded a unit. */
extern "C" __attribute__((visibility("default"))) const host_calls* host_library = 0;

/* One and the same for a work-item, wherever it goes on. */
static __attribute__((const, noinline)) const host_item* host_current() { return host_library->item(); }

#define threadIdx (host_current()->thread)
#define blockIdx (host_current()->block)
#define blockDim (host_current()->threads)
#define gridDim (host_current()->blocks)

#define __syncthreads() host_library->barrier()

/* Lanes before this one in a mask, as AMD counts them: the lower 32 lanes, then the upper. */
static inline unsigned __builtin_host_below(unsigned mask, int upper)
{
    int lanes = (int)host_current()->lane - (upper ? 32 : 0);
    unsigned below = lanes <= 0 ? 0u : lanes >= 32 ? ~0u : (1u << lanes) - 1u;
    return (unsigned)__builtin_popcount(mask & below);
}
#define __builtin_amdgcn_mbcnt_lo(mask, count) ((count) + __builtin_host_below(mask, 0))
#define __builtin_amdgcn_mbcnt_hi(mask, count) ((count) + __builtin_host_below(mask, 1))

/* The address counts bytes of 32-bit words, one per lane. */
static inline int host_ds_bpermute(int address, int value) { return (int)host_library->permute((unsigned)address >> 2, (unsigned)value); }
#define __builtin_amdgcn_ds_bpermute host_ds_bpermute

static inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
static inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
static inline double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }
static inline long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
static inline unsigned atomicAdd(unsigned* p, unsigned v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }

/* Calls a kernel with an array of the addresses of its arguments. */
template <int... I> struct host_places {};
template <class T, T... I> struct host_sequence { typedef host_places<I...> places; };
template <class... A, int... I> static void host_apply(void (*kernel)(A...), void** arguments, host_places<I...>)
{
    kernel(*(A*)arguments[I]...);
}
template <class... A> static void host_call(void (*kernel)(A...), void** arguments)
{
    host_apply(kernel, arguments, typename __make_integer_seq<host_sequence, int, sizeof...(A)>::places());
}
#line 1 "unit"
