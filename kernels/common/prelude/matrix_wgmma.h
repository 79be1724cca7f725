/* The products of prelude/matrix.h by wgmma (sm_90a): the four warps of 64 rows issue one instruction for 16 terms of all their sums; the right operand,
 * and the left one of gk_mm_tiles, are read from local memory through descriptors. Copies by cp.async pass a fence of the asynchronous proxy. */
#define GK_COPY_WAIT(n) asm volatile("cp.async.wait_group " #n ";\n\tfence.proxy.async.shared::cta;" : : : "memory")
#define GK_WGMMA_BEGIN() asm volatile("wgmma.fence.sync.aligned;" : : : "memory")
#define GK_WGMMA_END() asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory")
#define GK_MM_WAIT(n) asm volatile("wgmma.wait_group.sync.aligned " #n ";" : : : "memory")

/* A tile as wgmma sees it: address, distance of its panels, 1 KiB per 8 rows, rows of 128 bytes in swizzled order. */
GK_FN gk_u64 gk_wgmma_tile(GK_LOCAL_PTR const gk_raw16* tile, const int rows)
{
    return (gk_u64)((gk_local_address(tile) & 0x3ffffu) >> 4) | (gk_u64)(rows * 8) << 16 | (gk_u64)64 << 32 | (gk_u64)1 << 62;
}
/* The same for terms 16 k ... of a tile with a row per column. */
GK_FN gk_u64 gk_wgmma_terms(gk_u64 tile, const int rows, const int k) { return tile + (gk_u64)(k / 4 * rows * 8 + k % 4 * 2); }

#define GK_WGMMA(n, sums, left, transposed) \
    "{\n\t.reg .pred p;\n\tsetp.eq.u32 p, 0, 0;\n\twgmma.mma_async.sync.aligned.m64n" #n "k16.f32." GK_MMA_TYPE "." GK_MMA_TYPE \
    " {" sums "}, " left ", p, 1, 1, " transposed ";\n\t}"
#define GK_SUMS4(c) "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3])
#define GK_SUMS32(c) GK_SUMS4((c)[0]), GK_SUMS4((c)[1]), GK_SUMS4((c)[2]), GK_SUMS4((c)[3]), GK_SUMS4((c)[4]), GK_SUMS4((c)[5]), GK_SUMS4((c)[6]), \
    GK_SUMS4((c)[7])
#define GK_NAMES32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define GK_NAMES64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

GK_FN void gk_wgmma64(float (*c)[4], gk_frag_a a, gk_u64 b)
{
    asm volatile(GK_WGMMA(64, GK_NAMES32, "{%32, %33, %34, %35}, %36", "0")
                 : GK_SUMS32(c) : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b));
}
GK_FN void gk_wgmma64t(float (*c)[4], gk_frag_a a, gk_u64 b)
{
    asm volatile(GK_WGMMA(64, GK_NAMES32, "{%32, %33, %34, %35}, %36", "1")
                 : GK_SUMS32(c) : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b));
}
GK_FN void gk_wgmma64s(float (*c)[4], gk_u64 a, gk_u64 b)
{
    asm volatile(GK_WGMMA(64, GK_NAMES32, "%32, %33", "0, 0") : GK_SUMS32(c) : "l"(a), "l"(b));
}

GK_FN void gk_wgmma128(float (*c)[4], gk_frag_a a, gk_u64 b)
{
    asm volatile(GK_WGMMA(128, GK_NAMES64, "{%64, %65, %66, %67}, %68", "0")
                 : GK_SUMS32(c), GK_SUMS32(c + 8) : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b));
}
GK_FN void gk_wgmma128t(float (*c)[4], gk_frag_a a, gk_u64 b)
{
    asm volatile(GK_WGMMA(128, GK_NAMES64, "{%64, %65, %66, %67}, %68", "1")
                 : GK_SUMS32(c), GK_SUMS32(c + 8) : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b));
}
GK_FN void gk_wgmma128s(float (*c)[4], gk_u64 a, gk_u64 b)
{
    asm volatile(GK_WGMMA(128, GK_NAMES64, "%64, %65", "0, 0") : GK_SUMS32(c), GK_SUMS32(c + 8) : "l"(a), "l"(b));
}

GK_FN void gk_mm_rows_begin(float (*c)[4], const int n, const gk_frag_a* a, const int terms, GK_LOCAL_PTR const gk_raw16* b)
{
    gk_u64 tile = gk_wgmma_tile(b, n);
    GK_WGMMA_BEGIN();
    GK_UNROLL for (int k = 0; k < terms / 16; k++) {
        if (n == 64) gk_wgmma64(c, a[k], gk_wgmma_terms(tile, n, k));
        else gk_wgmma128(c, a[k], gk_wgmma_terms(tile, n, k));
    }
    GK_WGMMA_END();
}

GK_FN void gk_mm_tiles_begin(float (*c)[4], const int n, GK_LOCAL_PTR const gk_raw16* a, const int arows, int first, const int terms,
                       GK_LOCAL_PTR const gk_raw16* b)
{
    gk_u64 left = gk_wgmma_tile(a + first / 64 * 64 * 8, arows), tile = gk_wgmma_tile(b, n);
    GK_WGMMA_BEGIN();
    GK_UNROLL for (int k = 0; k < terms / 16; k++) {
        if (n == 64) gk_wgmma64s(c, gk_wgmma_terms(left, arows, k), gk_wgmma_terms(tile, n, k));
        else gk_wgmma128s(c, gk_wgmma_terms(left, arows, k), gk_wgmma_terms(tile, n, k));
    }
    GK_WGMMA_END();
}

GK_FN void gk_mm_terms_begin(float (*c)[4], const int n, const gk_frag_a* a, GK_LOCAL_PTR const gk_raw16* b, const int rows)
{
    gk_u64 tile = gk_wgmma_tile(b, rows);
    GK_WGMMA_BEGIN();
    GK_UNROLL for (int k = 0; k < rows / 16; k++) {
        if (n == 64) gk_wgmma64t(c, a[k], tile + (gk_u64)(128 * k));
        else gk_wgmma128t(c, a[k], tile + (gk_u64)(128 * k));
    }
    GK_WGMMA_END();
}

/* Keeps the compiler from reading the sums before the wait in front of this. */
GK_FN void gk_mm_ready(float (*c)[4], const int n)
{
    GK_UNROLL for (int j = 0; j < n / 8; j++) asm volatile("" : GK_SUMS4(c[j]) : : "memory");
}
