/* The products of prelude/matrix.h by mma.sync: a warp multiplies its 16 rows by 8 columns at a time, of fragments that ldmatrix reads. */
#define GK_COPY_WAIT(n) asm volatile("cp.async.wait_group " #n ";" : : : "memory")
#define GK_MM_WAIT(n) ((void)0)
#define gk_mm_ready(c, n) ((void)0)

typedef struct { gk_u32 r[2]; } gk_frag_b;

#if GK_DTYPE == GK_F32
GK_FN void gk_mma_tf32(float c[4], const gk_u32 a[4], const gk_u32 b[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* x rounded to the 11 leading bits that TF32 has, ties away from zero, and what that leaves, of which the products read as many. */
GK_FN void gk_tf32_parts(gk_u32 x, gk_u32* large, gk_u32* small)
{
    *large = (x + 0x1000u) & 0xffffe000u;
    *small = gk_as_u32(gk_as_f32(x) - gk_as_f32(*large));
}

/* A left operand as it is multiplied. */
typedef struct { gk_u32 large[4], small[4]; } gk_left;
GK_FN gk_left gk_left_of(gk_frag_a a)
{
    gk_left l;
    GK_UNROLL for (int i = 0; i < 4; i++) gk_tf32_parts(a.r[i], &l.large[i], &l.small[i]);
    return l;
}

/* c + rest += a b for neighbours in columns; what small parts add goes to `rest`. The products of one neighbour follow each other at a distance. */
GK_FN void gk_mma4(float (*c)[4], float (*rest)[4], gk_left a, const gk_frag_b b[4])
{
    gk_frag_b large[4], small[4];
    GK_UNROLL for (int i = 0; i < 8; i++) gk_tf32_parts(b[i / 2].r[i % 2], &large[i / 2].r[i % 2], &small[i / 2].r[i % 2]);
    GK_UNROLL for (int i = 0; i < 4; i++) gk_mma_tf32(rest[i], a.small, large[i].r);
    GK_UNROLL for (int i = 0; i < 4; i++) gk_mma_tf32(rest[i], a.large, small[i].r);
    GK_UNROLL for (int i = 0; i < 4; i++) gk_mma_tf32(c[i], a.large, large[i].r);
}

/* Four right operands from terms 8 k ... and columns 8 j ... of a tile with a row per term. Terms are in the order of gk_frag_of; columns are in an order in
 * which a thread finds one of each operand in a chunk. */
GK_FN void gk_load_b_terms(gk_frag_b f[4], GK_LOCAL_PTR const gk_raw16* b, const int rows, const int k, const int j)
{
    GK_UNROLL for (int e = 0; e < 2; e++) {
        gk_u32 at = gk_chunk_address(b, gk_lid() % 4 * 2 + e, gk_lid() % 32 / 4);
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(f[0].r[e]), "=r"(f[1].r[e]), "=r"(f[2].r[e]), "=r"(f[3].r[e])
                     : "r"(at + (gk_u32)(1024 * k + j / 4 * rows * 128)) : "memory");
    }
}

/* The thread's columns of 32: eight beside each other. */
#define GK_TERMS_MIX_COLUMNS 1
GK_FN void gk_mm_store(GK_GLOBAL gk_t* p, float (*c)[4], const int n, const int h, int width, float factor, int accumulate)
{
    GK_UNROLL for (int j = 0; j < n / 8; j += 4) {
        int at = 8 * j + gk_lid() % 4 * 8;
        GK_UNROLL for (int e = 2 * h; e < 2 * h + 2; e++, at += 4) {
            if (at < width) {
                gk_vec v;
                GK_UNROLL for (int i = 0; i < 4; i++) v.v[i] = c[j + i][e] * factor + (accumulate ? gk_load(p, at + i) : 0.0f);
                gk_storev(p, at, v);
            }
        }
    }
}
#else
#define gk_left gk_frag_a
#define gk_left_of(a) (a)

GK_FN void gk_mma(float c[4], gk_frag_a a, gk_frag_b b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32." GK_MMA_TYPE "." GK_MMA_TYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
}

/* c += a b for neighbours in columns. */
GK_FN void gk_mma4(float (*c)[4], float (*rest)[4], gk_left a, const gk_frag_b b[4])
{
    (void)rest;
    GK_UNROLL for (int i = 0; i < 4; i++) gk_mma(c[i], a, b[i]);
}

/* gk_load_a from a tile with a row per term. Lane l names term l % 8 of the quarter l / 8: first and second chunk, and the same of the next eight terms. */
GK_FN gk_frag_a gk_load_a_terms(GK_LOCAL_PTR const gk_raw16* tile, const int rows, int first, const int k)
{
    gk_frag_a a;
    int l = gk_lid() % 32, term = 16 * k + l / 16 * 8 + l % 8;
    GK_LDMATRIX(".trans", a.r[0], a.r[1], a.r[2], a.r[3], gk_local_address(tile + gk_chunk_at(term, first / 8 + l / 8 % 2, rows)));
    return a;
}

/* Four right operands from terms 16 k ... and columns 8 j ... of a tile with a row per term. */
GK_FN void gk_load_b_terms(gk_frag_b f[4], GK_LOCAL_PTR const gk_raw16* b, const int rows, const int k, const int j)
{
    int l = gk_lid() % 32;
    gk_u32 at = gk_chunk_address(b, l % 16, l / 16) + (gk_u32)(2048 * k);
    GK_UNROLL for (int i = 0; i < 4; i += 2) GK_LDMATRIX(".trans", f[i].r[0], f[i].r[1], f[i + 1].r[0], f[i + 1].r[1], gk_chunk_on(at, j + i, rows));
}
#endif

/* Sums of 16 x 32. */
typedef struct { float c[4][4]; } gk_sums;
GK_FN gk_sums gk_no_sums(void)
{
    gk_sums s;
    GK_UNROLL for (int i = 0; i < 16; i++) s.c[i / 4][i % 4] = 0.0f;
    return s;
}
GK_FN void gk_add_sums(float (*c)[4], gk_sums s)
{
    GK_UNROLL for (int i = 0; i < 16; i++) c[i / 4][i % 4] += s.c[i / 4][i % 4];
}

/* Four right operands from terms GK_FRAG_TERMS k ... of a tile of n rows, one per column, from column 8 j on. */
GK_FN void gk_load_b_rows(gk_frag_b f[4], GK_LOCAL_PTR const gk_raw16* b, const int n, const int k, const int j)
{
    int l = gk_lid() % 32;
    gk_u32 at = gk_chunk_on(gk_chunk_address(b, l % 8 + l / 16 * 8, l / 8 % 2), 2 * k, n);
    GK_UNROLL for (int i = 0; i < 4; i += 2) GK_LDMATRIX("", f[i].r[0], f[i].r[1], f[i + 1].r[0], f[i + 1].r[1], at + (gk_u32)(1024 * (j + i)));
}

/* Matrix cores round sums towards zero. So that errors do not add up, in f32 what small parts add is summed apart, and in gk_mm_terms_begin all that one call
 * adds. */
GK_FN void gk_mm_rows_begin(float (*c)[4], const int n, const gk_frag_a* a, const int terms, GK_LOCAL_PTR const gk_raw16* b)
{
    gk_frag_b f[4];
    gk_mm_clear(c, n);
    GK_UNROLL for (int j = 0; j < n / 8; j += 4) {
        gk_sums rest = gk_no_sums();
        GK_UNROLL for (int k = 0; k < terms / GK_FRAG_TERMS; k++) {
            gk_load_b_rows(f, b, n, k, j);
            gk_mma4(c + j, rest.c, gk_left_of(a[k]), f);
        }
        gk_add_sums(c + j, rest);
    }
}

GK_FN void gk_mm_tiles_add(float (*c)[4], const int n, GK_LOCAL_PTR const gk_raw16* a, const int arows, int first, const int terms,
                           GK_LOCAL_PTR const gk_raw16* b)
{
    gk_frag_b f[4];
    GK_UNROLL for (int j = 0; j < n / 8; j += 4) {
        gk_sums rest = gk_no_sums();
        GK_UNROLL for (int k = 0; k < terms / GK_FRAG_TERMS; k++) {
            gk_load_b_rows(f, b, n, k, j);
            gk_mma4(c + j, rest.c, gk_left_of(gk_load_a(a, arows, first, k)), f);
        }
        gk_add_sums(c + j, rest);
    }
}

GK_FN void gk_mm_tiles_begin(float (*c)[4], const int n, GK_LOCAL_PTR const gk_raw16* a, const int arows, int first, const int terms,
                             GK_LOCAL_PTR const gk_raw16* b)
{
    gk_mm_clear(c, n);
    gk_mm_tiles_add(c, n, a, arows, first, terms, b);
}

GK_FN void gk_mm_terms_begin(float (*c)[4], const int n, const gk_frag_a* a, GK_LOCAL_PTR const gk_raw16* b, const int rows)
{
    gk_frag_b f[4];
    GK_UNROLL for (int j = 0; j < n / 8; j += 4) {
        gk_sums all = gk_no_sums();
        GK_UNROLL for (int k = 0; k < rows / GK_FRAG_TERMS; k++) {
            gk_load_b_terms(f, b, rows, k, j);
            gk_mma4(GK_DTYPE == GK_F32 ? all.c : c + j, all.c, gk_left_of(a[k]), f);
        }
        gk_add_sums(c + j, all);
    }
}

#if GK_DTYPE != GK_F32
GK_FN void gk_mm_tiles_by(float (*c)[4], const int n, GK_LOCAL_PTR const gk_raw16* a, const int arows, int first, const int at, const int terms,
                          GK_LOCAL_PTR const gk_raw16* b, const int bt)
{
    gk_frag_b f[4];
    GK_UNROLL for (int j = 0; j < n / 8; j += 4) {
        GK_UNROLL for (int k = 0; k < terms / GK_FRAG_TERMS; k++) {
            gk_frag_a left = at ? gk_load_a_terms(a, arows, first, k) : gk_load_a(a, arows, first, k);
            if (bt) gk_load_b_terms(f, b, terms, k, j);
            else gk_load_b_rows(f, b, n, k, j);
            gk_mma4(c + j, c + j, left, f);
        }
    }
}
#endif
