/* Coordinates of items in a shape of merged axes, and storage as plain bits for kernels that move elements without looking at them.
 *
 * Divisions by the sizes are products: for a divisor d the host passes (l << 32 | m), l = ceil(log2 d), m = floor(2^32 (2^l - d) / d) + 1,
 * and the quotient of any n below 2^31 is (mulhi(n, m) + n) >> l (Granlund and Montgomery, 1994). Larger counts divide in 64 bits.
 */

GK_FN gk_u32 gk_quotient(gk_u32 n, gk_i64 magic) { return (gk_mulhi(n, (gk_u32)magic) + n) >> (int)(magic >> 32); }

/* The quotient of one of n items by a size. */
GK_FN gk_i64 gk_over(gk_i64 item, gk_i64 n, gk_i64 size, gk_i64 magic)
{
    return n <= 0x7fffffff ? (gk_i64)gk_quotient((gk_u32)item, magic) : item / size;
}

/* Runs `step` for each axis `d` with the item's coordinate `r` there, innermost first; `quotient` is rest_ by the axis' size. The loops over axes
 * stay rolled: unrolled ones take compilers many times longer. */
#define GK_AXES_LOOP(type, item, rank, shape, quotient, step) \
    do { \
        type rest_ = (type)(item); \
        GK_ROLLED for (int d = (rank) - 1; d > 0; d--) { \
            type q_ = quotient; \
            gk_i64 r = (gk_i64)(rest_ - q_ * (type)(shape).v[d]); \
            rest_ = q_; \
            step } \
        { const int d = 0; gk_i64 r = (gk_i64)rest_; step } \
    } while (0)
/* For less than 2^31 items. */
#define GK_AXES32(item, rank, shape, magic, step) GK_AXES_LOOP(gk_u32, item, rank, shape, gk_quotient(rest_, (magic).v[d]), step)
/* For any number `n` of items. */
#define GK_AXES(item, n, rank, shape, magic, step) \
    do { \
        if ((n) <= 0x7fffffff) GK_AXES32(item, rank, shape, magic, step); \
        else GK_AXES_LOOP(gk_i64, item, rank, shape, rest_ / (shape).v[d], step); \
    } while (0)

typedef struct { gk_b v[GK_W]; } gk_bits;

GK_FN gk_bits gk_split(gk_raw16 q)
{
    gk_bits r;
    gk_u32 w[4];
    w[0] = q.x; w[1] = q.y; w[2] = q.z; w[3] = q.w;
    GK_UNROLL for (int k = 0; k < GK_W; k++) {
#if GK_W == 4
        r.v[k] = w[k];
#elif GK_W == 2
        r.v[k] = (gk_u64)w[2 * k + 1] << 32 | w[2 * k];
#elif GK_W == 8
        r.v[k] = (gk_b)(w[k / 2] >> (16 * (k % 2)));
#else
        r.v[k] = (gk_b)(w[k / 4] >> (8 * (k % 4)));
#endif
    }
    return r;
}

GK_FN gk_raw16 gk_pack16(gk_bits r)
{
#if GK_W == 4
    return gk_make16(r.v[0], r.v[1], r.v[2], r.v[3]);
#elif GK_W == 2
    return gk_make16((gk_u32)r.v[0], (gk_u32)(r.v[0] >> 32), (gk_u32)r.v[1], (gk_u32)(r.v[1] >> 32));
#else
    gk_u32 w[4];
    w[0] = 0u; w[1] = 0u; w[2] = 0u; w[3] = 0u;
    GK_UNROLL for (int k = 0; k < GK_W; k++) w[k * 4 / GK_W] |= (gk_u32)r.v[k] << (128 / GK_W * (k % (GK_W / 4)));
    return gk_make16(w[0], w[1], w[2], w[3]);
#endif
}

#if GK_IS_FLOAT
/* y[i] = bits, or y[i] += their value. */
GK_FN void gk_put(GK_GLOBAL gk_t* y, gk_i64 i, gk_b b, int accumulate)
{
    if (accumulate) gk_store(y, i, gk_load(y, i) + gk_value(b));
    else ((GK_GLOBAL gk_b*)y)[i] = b;
}
GK_FN void gk_putv(GK_GLOBAL gk_t* y, gk_i64 i, gk_bits b, int accumulate)
{
    if (accumulate) {
        gk_vec o = gk_loadv(y, i);
        GK_UNROLL for (int k = 0; k < GK_W; k++) o.v[k] += gk_value(b.v[k]);
        gk_storev(y, i, o);
    } else {
        gk_store16((GK_GLOBAL void*)(y + i), gk_pack16(b));
    }
}
#else
GK_FN void gk_put(GK_GLOBAL gk_t* y, gk_i64 i, gk_b b, int accumulate)
{
    (void)accumulate;
    ((GK_GLOBAL gk_b*)y)[i] = b;
}
GK_FN void gk_putv(GK_GLOBAL gk_t* y, gk_i64 i, gk_bits b, int accumulate)
{
    (void)accumulate;
    gk_store16((GK_GLOBAL void*)(y + i), gk_pack16(b));
}
#endif
