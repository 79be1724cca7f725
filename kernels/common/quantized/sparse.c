/* 2:4 sparsity: of four neighbours in a row the two of largest magnitude are kept, the first of equals.
 *
 * values [.., k / 2] = the kept ones in order, index [.., k / 4] = place of the first + 4 * place of the second. A thread takes as many groups of
 * four as two items of 16 bytes hold. Reference: torch.sparse.to_sparse_semi_structured.
 */
#define GK_SPARSE_GROUPS (GK_W / 2)

/* The kept two of v[0] to v[3], moved to the front; their places. NaN is kept. */
GK_FN gk_u32 gk_keep_two(gk_f v[4])
{
    int first = 0, second = -1;
    gk_f best = GK_R(-1.0), next = GK_R(-1.0);
    GK_UNROLL for (int u = 0; u < 4; u++) {
        gk_f a = gk_isnan(v[u]) ? GK_INF : gk_fabs(v[u]);
        if (a > best) {
            next = best;
            second = first;
            best = a;
            first = u;
        } else if (a > next) {
            next = a;
            second = u;
        }
    }
    int lo = first < second ? first : second, hi = first < second ? second : first;
    gk_f a = lo == 0 ? v[0] : lo == 1 ? v[1] : v[2], b = hi == 1 ? v[1] : hi == 2 ? v[2] : v[3];
    v[0] = a;
    v[1] = b;
    return (gk_u32)(lo + 4 * hi);
}

// Units: FLOATS64
/* wide: x and values begin at multiples of 16 bytes. Launch: grid-stride over runs of GK_SPARSE_GROUPS groups. */
GK_KERNEL(sparse_pack)(GK_IN(gk_t, x), GK_OUT(gk_t, values), GK_OUT(gk_u8, index), gk_i64 groups, int wide)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, values); GK_BIND_OUT(gk_u8, index);
    for (gk_i64 at = gk_gid() * GK_SPARSE_GROUPS; at < groups; at += gk_gsize() * GK_SPARSE_GROUPS) {
        int count = groups - at < GK_SPARSE_GROUPS ? (int)(groups - at) : GK_SPARSE_GROUPS, whole = wide && count == GK_SPARSE_GROUPS;
        gk_vec a, b, kept;
        if (whole) {
            a = gk_loadv(x, 4 * at);
            b = gk_loadv(x, 4 * at + GK_W);
        }
        GK_UNROLL for (int g = 0; g < GK_SPARSE_GROUPS; g++)
            if (g < count) {
                gk_f v[4];
                GK_UNROLL for (int u = 0; u < 4; u++) {
                    if (!whole) v[u] = gk_load(x, 4 * (at + g) + u);
                    else v[u] = 4 * g + u < GK_W ? a.v[(4 * g + u) % GK_W] : b.v[(4 * g + u) % GK_W];
                }
                index[at + g] = (gk_u8)gk_keep_two(v);
                kept.v[2 * g] = v[0];
                kept.v[2 * g + 1] = v[1];
                if (!whole) {
                    gk_store(values, 2 * (at + g), v[0]);
                    gk_store(values, 2 * (at + g) + 1, v[1]);
                }
            }
        if (whole) gk_storev(values, 2 * at, kept);
    }
}

/* The dense rows again, 0 where nothing was kept. wide, launch: as for sparse_pack. */
GK_KERNEL(sparse_unpack)(GK_IN(gk_t, values), GK_IN(gk_u8, index), GK_OUT(gk_t, y), gk_i64 groups, int wide)
{
    GK_BIND_IN(gk_t, values); GK_BIND_IN(gk_u8, index); GK_BIND_OUT(gk_t, y);
    for (gk_i64 at = gk_gid() * GK_SPARSE_GROUPS; at < groups; at += gk_gsize() * GK_SPARSE_GROUPS) {
        int count = groups - at < GK_SPARSE_GROUPS ? (int)(groups - at) : GK_SPARSE_GROUPS, whole = wide && count == GK_SPARSE_GROUPS;
        gk_vec kept, out[2];
        if (whole) kept = gk_loadv(values, 2 * at);
        GK_UNROLL for (int g = 0; g < GK_SPARSE_GROUPS; g++)
            if (g < count) {
                int lo = index[at + g] & 3, hi = index[at + g] >> 2 & 3;
                if (!whole) {
                    kept.v[2 * g] = gk_load(values, 2 * (at + g));
                    kept.v[2 * g + 1] = gk_load(values, 2 * (at + g) + 1);
                }
                GK_UNROLL for (int u = 0; u < 4; u++) {
                    gk_f v = u == lo ? kept.v[2 * g] : u == hi ? kept.v[2 * g + 1] : GK_R(0.0);
                    if (whole) out[(4 * g + u) / GK_W].v[(4 * g + u) % GK_W] = v;
                    else gk_store(y, 4 * (at + g) + u, v);
                }
            }
        if (whole) {
            gk_storev(y, 4 * at, out[0]);
            gk_storev(y, 4 * at + GK_W, out[1]);
        }
    }
}
