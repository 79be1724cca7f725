/* The products of prelude/matrix.h by wgmma (sm_90a): the four warps of 64 rows issue one instruction for 16 terms of all their sums; the right operand,
 * and the left one of gk_mm_tiles, are read from local memory through descriptors. Copies by cp.async pass a fence of the asynchronous proxy. */
#define GK_COPY_WAIT(n) asm volatile("cp.async.wait_group " #n ";\n\tfence.proxy.async.shared::cta;" : : : "memory")
#define GK_WGMMA_BEGIN() asm volatile("wgmma.fence.sync.aligned;" : : : "memory")
#define GK_WGMMA_END() asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory")
#define GK_MM_WAIT(n) asm volatile("wgmma.wait_group.sync.aligned " #n ";" : : : "memory")

/* The lower half of a tile's descriptor: address, and distance of its panels. The upper half is the same for all: 1 KiB per 8 rows, rows of 128 bytes in
 * swizzled order. */
#define GK_WGMMA_UPPER "0x40000040"
GK_FN gk_u32 gk_wgmma_tile(gk_u32 address, const int rows) { return (address & 0x3ffffu) >> 4 | (gk_u32)(rows * 8) << 16; }
/* The same for terms 16 k ... of a tile with a row per column. */
GK_FN gk_u32 gk_wgmma_terms(gk_u32 tile, const int rows, const int k) { return tile + (gk_u32)(k / 4 * rows * 8 + k % 4 * 2); }

/* sums += left right, or = with a 1 in `first`, which spares zeros that would have to be written while products run: left in registers (`transposed`: the
 * right tile has a row per term), or both tiles in local memory. */
#define GK_WGMMA(n, sums, left, right, transposed, first) \
    "{\n\t.reg .pred p;\n\t.reg .b64 b;\n\tmov.b64 b, {" right ", " GK_WGMMA_UPPER "};\n\tsetp.eq.u32 p, " first ", 0;\n\t" \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." GK_MMA_TYPE "." GK_MMA_TYPE " {" sums "}, " left ", b, p, 1, 1, " transposed ";\n\t}"
#define GK_WGMMA_TILES(n, sums, left, right, first, lt, rt) \
    "{\n\t.reg .pred p;\n\t.reg .b64 a, b;\n\tmov.b64 a, {" left ", " GK_WGMMA_UPPER "};\n\tmov.b64 b, {" right ", " GK_WGMMA_UPPER "};\n\t" \
    "setp.eq.u32 p, " first ", 0;\n\t" \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." GK_MMA_TYPE "." GK_MMA_TYPE " {" sums "}, a, b, p, 1, 1, " lt ", " rt ";\n\t}"
#define GK_SUMS4(c) "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3])
#define GK_SUMS32(c) GK_SUMS4((c)[0]), GK_SUMS4((c)[1]), GK_SUMS4((c)[2]), GK_SUMS4((c)[3]), GK_SUMS4((c)[4]), GK_SUMS4((c)[5]), GK_SUMS4((c)[6]), \
    GK_SUMS4((c)[7])
#define GK_FRAG4(a) "r"((a).r[0]), "r"((a).r[1]), "r"((a).r[2]), "r"((a).r[3])
#define GK_NAMES32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define GK_NAMES64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/* One instruction of n = 64 or 128 columns: rows of the right tile are columns, or terms (t), or both tiles are in local memory (s). */
GK_FN void gk_wgmma(float (*c)[4], const int n, gk_frag_a a, gk_u32 b, int first)
{
    if (n == 64) asm volatile(GK_WGMMA(64, GK_NAMES32, "{%32, %33, %34, %35}", "%36", "0", "%37") : GK_SUMS32(c) : GK_FRAG4(a), "r"(b), "r"(first));
    else asm volatile(GK_WGMMA(128, GK_NAMES64, "{%64, %65, %66, %67}", "%68", "0", "%69") : GK_SUMS32(c), GK_SUMS32(c + 8) : GK_FRAG4(a), "r"(b), "r"(first));
}
GK_FN void gk_wgmma_t(float (*c)[4], const int n, gk_frag_a a, gk_u32 b)
{
    if (n == 64) asm volatile(GK_WGMMA(64, GK_NAMES32, "{%32, %33, %34, %35}", "%36", "1", "0") : GK_SUMS32(c) : GK_FRAG4(a), "r"(b));
    else asm volatile(GK_WGMMA(128, GK_NAMES64, "{%64, %65, %66, %67}", "%68", "1", "0") : GK_SUMS32(c), GK_SUMS32(c + 8) : GK_FRAG4(a), "r"(b));
}
/* `lt`, `rt`: the left, the right tile has a row per term. */
#define GK_WGMMA_S(lt, rt) \
    if (n == 64) asm volatile(GK_WGMMA_TILES(64, GK_NAMES32, "%32", "%33", "%34", lt, rt) : GK_SUMS32(c) : "r"(a), "r"(b), "r"(first)); \
    else asm volatile(GK_WGMMA_TILES(128, GK_NAMES64, "%64", "%65", "%66", lt, rt) : GK_SUMS32(c), GK_SUMS32(c + 8) : "r"(a), "r"(b), "r"(first))
GK_FN void gk_wgmma_s(float (*c)[4], const int n, gk_u32 a, const int at, gk_u32 b, const int bt, int first)
{
    if (!at && !bt) { GK_WGMMA_S("0", "0"); }
    else if (!at) { GK_WGMMA_S("0", "1"); }
    else { GK_WGMMA_S("1", "1"); }
}

GK_FN void gk_mm_rows_begin(float (*c)[4], const int n, const gk_frag_a* a, const int terms, GK_LOCAL_PTR const gk_raw16* b)
{
    gk_u32 tile = gk_wgmma_tile(gk_local_address(b), n);
    GK_WGMMA_BEGIN();
    GK_UNROLL for (int k = 0; k < terms / 16; k++) gk_wgmma(c, n, a[k], gk_wgmma_terms(tile, n, k), k == 0 ? 1 : 0);
    GK_WGMMA_END();
}

/* Terms 16 k ... of a tile of `rows` rows, of which each is a column or (t) a term. */
GK_FN gk_u32 gk_wgmma_part(gk_u32 tile, const int rows, const int t, const int k) { return t ? tile + (gk_u32)(128 * k) : gk_wgmma_terms(tile, rows, k); }

/* `fresh`: sums = instead of +=. */
GK_FN void gk_mm_tiles(float (*c)[4], const int n, GK_LOCAL_PTR const gk_raw16* a, const int arows, int first, const int at, const int terms,
                       GK_LOCAL_PTR const gk_raw16* b, const int bt, const int fresh)
{
    gk_u32 left = gk_wgmma_tile(gk_local_address(a + first / 64 * (at ? arows : 64) * 8), arows), tile = gk_wgmma_tile(gk_local_address(b), bt ? terms : n);
    GK_WGMMA_BEGIN();
    GK_UNROLL for (int k = 0; k < terms / 16; k++)
        gk_wgmma_s(c, n, gk_wgmma_part(left, arows, at, k), at, gk_wgmma_part(tile, n, bt, k), bt, k == 0 ? fresh : 0);
    GK_WGMMA_END();
}
#define gk_mm_tiles_begin(c, n, a, arows, first, terms, b) gk_mm_tiles(c, n, a, arows, first, 0, terms, b, 0, 1)
#define gk_mm_tiles_add(c, n, a, arows, first, terms, b) gk_mm_tiles(c, n, a, arows, first, 0, terms, b, 0, 0)
#define gk_mm_tiles_by(c, n, a, arows, first, at, terms, b, bt) gk_mm_tiles(c, n, a, arows, first, at, terms, b, bt, 0)

GK_FN void gk_mm_terms_begin(float (*c)[4], const int n, const gk_frag_a* a, GK_LOCAL_PTR const gk_raw16* b, const int rows)
{
    gk_u32 tile = gk_wgmma_tile(gk_local_address(b), rows);
    GK_WGMMA_BEGIN();
    GK_UNROLL for (int k = 0; k < rows / 16; k++) gk_wgmma_t(c, n, a[k], tile + (gk_u32)(128 * k));
    GK_WGMMA_END();
}

/* Keeps the compiler from reading the sums before the wait in front of this. */
GK_FN void gk_mm_ready(float (*c)[4], const int n)
{
    GK_UNROLL for (int j = 0; j < n / 8; j++) asm volatile("" : GK_SUMS4(c[j]) : : "memory");
}

#include "common/prelude/warp_groups.h"
