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
    /* The words of all lanes of the wave, those of lane l from l * words on; all lanes take part. */
    void (*gather)(const unsigned* mine, unsigned words, unsigned* all);
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

/* A vote of all lanes: bit l is that of lane l. */
static inline unsigned long long __ballot(int set)
{
    unsigned mine = set != 0, all[64] = {0};
    unsigned long long lanes = 0;
    host_library->gather(&mine, 1, all);
    for (int l = 0; l < 64; l++) lanes |= (unsigned long long)all[l] << l;
    return lanes;
}
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
/* Lanes of a wave, which run together on a device, meet. */
static inline void host_wave_barrier() { host_library->permute(host_current()->lane, 0); }
#define __builtin_amdgcn_wave_barrier() host_wave_barrier()
#define __builtin_amdgcn_fence(order, scope) ((void)0)

/* MFMA: d += x y for 16 x 16 sums by 64 lanes, with the places of AMD's matrix instruction calculator. Lane l gives `count` numbers of row l % 16 of x and of
 * column l % 16 of y, those of terms count * (l / 16) ..., and has rows 4 (l / 16) ... of column l % 16 of d. */
typedef float host_sums __attribute__((ext_vector_type(4)));
template <int count> static host_sums host_mfma(const float (&x)[count], const float (&y)[count], host_sums d)
{
    unsigned mine[2 * count], all[64 * 2 * count], lane = host_current()->lane;
    for (int i = 0; i < count; i++) {
        mine[i] = __builtin_bit_cast(unsigned, x[i]);
        mine[count + i] = __builtin_bit_cast(unsigned, y[i]);
    }
    host_library->gather(mine, 2 * count, all);
    for (unsigned r = 0; r < 4; r++) {
        for (unsigned k = 0; k < 4 * count; k++) {
            unsigned row = 4 * (lane / 16) + r, column = lane % 16, from = k / count * 16, i = k % count;
            d[r] += __builtin_bit_cast(float, all[(from + row) * 2 * count + i]) * __builtin_bit_cast(float, all[(from + column) * 2 * count + count + i]);
        }
    }
    return d;
}
/* Numbers of 16 bits as a device multiplies them: gfx90a takes denormal ones for 0. */
static inline float host_term(_Float16 x)
{
#ifdef __gfx90a__
    if (__builtin_fabsf((float)x) < 6.103515625e-5f) return 0.0f;
#endif
    return (float)x;
}
static inline float host_term(short x) { return __builtin_bit_cast(float, (unsigned)(unsigned short)x << 16); }
template <int count, class T> static host_sums host_mfma_terms(T x, T y, host_sums d)
{
    float terms[2][count];
    for (int i = 0; i < count; i++) { terms[0][i] = host_term(x[i]); terms[1][i] = host_term(y[i]); }
    return host_mfma(terms[0], terms[1], d);
}
static inline host_sums host_mfma_f32(float x, float y, host_sums d)
{
    float terms[2][1] = {{x}, {y}};
    return host_mfma(terms[0], terms[1], d);
}
#define __builtin_amdgcn_mfma_f32_16x16x4f32(x, y, d, cbsz, abid, blgp) host_mfma_f32(x, y, d)
#define __builtin_amdgcn_mfma_f32_16x16x16f16(x, y, d, cbsz, abid, blgp) host_mfma_terms<4>(x, y, d)
#define __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(x, y, d, cbsz, abid, blgp) host_mfma_terms<4>(x, y, d)
#define __builtin_amdgcn_mfma_f32_16x16x8bf16(x, y, d, cbsz, abid, blgp) host_mfma_terms<2>(x, y, d)

/* WMMA: d += x y for 16 x 16 sums and 16 terms by 32 lanes, with the places of AMD's matrix instruction calculator. Lane l gives numbers of row l % 16 of x and
 * of column l % 16 of y, and has rows of column l % 16 of d. */
typedef float host_wmma_sums __attribute__((ext_vector_type(8)));
#if defined(__gfx1200__) || defined(__gfx1201__)
/* Terms 8 (i / 4) + 4 (l / 16) + i % 4 for i < 8; row 8 (l / 16) + r of d is element r. */
#define HOST_WMMA_TERMS 8
static inline unsigned host_wmma_lane(unsigned place, unsigned k) { return k / 4 % 2 * 16 + place; }
static inline unsigned host_wmma_number(unsigned k) { return k / 8 * 4 + k % 4; }
static inline unsigned host_wmma_row(unsigned lane, unsigned r) { return 8 * (lane / 16) + r; }
#define __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(x, y, d) host_wmma(x, y, d)
#define __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(x, y, d) host_wmma(x, y, d)
#else
/* All terms, the same in lanes l and l + 16; row 2 r + l / 16 of d is element r. */
#define HOST_WMMA_TERMS 16
static inline unsigned host_wmma_lane(unsigned place, unsigned k) { (void)k; return place; }
static inline unsigned host_wmma_number(unsigned k) { return k; }
static inline unsigned host_wmma_row(unsigned lane, unsigned r) { return 2 * r + lane / 16; }
#define __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(x, y, d) host_wmma(x, y, d)
#define __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(x, y, d) host_wmma(x, y, d)
#endif
template <class T> static host_wmma_sums host_wmma(T x, T y, host_wmma_sums d)
{
    const unsigned count = HOST_WMMA_TERMS, words = 2 * count, lane = host_current()->lane;
    unsigned mine[words], all[32 * words];
    for (unsigned i = 0; i < count; i++) {
        mine[i] = __builtin_bit_cast(unsigned, host_term(x[i]));
        mine[count + i] = __builtin_bit_cast(unsigned, host_term(y[i]));
    }
    host_library->gather(mine, words, all);
    /* Where lanes should give the same and do not, sums are no numbers. */
    for (unsigned i = 0; count == 16 && i < 16 * words; i++)
        if (all[i] != all[16 * words + i]) return d * __builtin_nanf("");
    for (unsigned r = 0; r < 8; r++) {
        for (unsigned k = 0; k < 16; k++) {
            unsigned row = host_wmma_lane(host_wmma_row(lane, r), k), column = host_wmma_lane(lane % 16, k), i = host_wmma_number(k);
            d[r] += __builtin_bit_cast(float, all[row * words + i]) * __builtin_bit_cast(float, all[column * words + count + i]);
        }
    }
    return d;
}

/* Lane l reads a lane of the other row of 16: place l % 16 of its own row has that one's number in four bits, of `low` for the first eight places. */
static inline unsigned host_permlanex16(unsigned v, unsigned low, unsigned high)
{
    unsigned lane = host_current()->lane, at = lane % 16;
    return host_library->permute((lane / 16 ^ 1) * 16 + ((at < 8 ? low : high) >> at % 8 * 4 & 15), v);
}
#define __builtin_amdgcn_permlanex16(old, v, low, high, fetch_inactive, bound) host_permlanex16(v, low, high)

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
