/* Distances of all pairs of vectors, and distance or similarity of vectors in pairs.
 *
 *   distance = (sum |a - b|^p)^(1/p); p = 0 counts differences, p = inf takes the largest
 *   d/da = dy sign(d) |d|^(p-1) / y^(p-1), 0 where y is 0; p = 1: dy sign(d); p = inf: dy sign(d) where |d| is y
 *   cosine = a.b / (max(|a|, eps) max(|b|, eps)); d/da = dy (b / (|a| |b|) - y a / |a|^2), the second term only above eps
 *
 * `mode` is the kind of p: 0, 1, 2, 3 for infinity, 4 for others. Differences are taken directly, never as |a|^2 + |b|^2 - 2 a.b, which loses all
 * digits of near vectors. Sums in gk_f in a fixed order. Deterministic. Reference: torch.cdist(compute_mode="donot_use_mm_for_euclid_dist"),
 * F.pdist, F.pairwise_distance, F.cosine_similarity.
 */
#define GK_DIST_TILE 64
#define GK_DIST_STEP 16
/* Rows of a local tile are one longer, so that its columns lie in different banks. */
#define GK_DIST_PITCH (GK_DIST_TILE + 1)
#define GK_HALF_TILE 32
#define GK_HALF_PITCH (GK_HALF_TILE + 1)

GK_FN gk_f gk_sign(gk_f d) { return d > GK_R(0.0) ? GK_R(1.0) : d < GK_R(0.0) ? GK_R(-1.0) : d; }

/* One more difference in a sum. */
GK_FN gk_f gk_gather_in(int mode, gk_f sum, gk_f d, gk_f p)
{
    d = gk_fabs(d);
    if (mode == 2) return sum + d * d;
    if (mode == 1) return sum + d;
    if (mode == 3) return gk_max(sum, d);
    if (mode == 0) return sum + (d == GK_R(0.0) ? GK_R(0.0) : GK_R(1.0));
    return sum + gk_pow(d, p);
}

GK_FN gk_f gk_root(int mode, gk_f sum, gk_f p)
{
    if (mode == 2) return gk_sqrt(sum);
    return mode == 4 ? gk_pow(sum, GK_R(1.0) / p) : sum;
}

/* dy times the part of the derivative that depends on the distance alone. */
GK_FN gk_f gk_outer(int mode, gk_f dy, gk_f y, gk_f p)
{
    if (mode == 1 || mode == 3) return dy;
    if (mode == 0 || y == GK_R(0.0)) return GK_R(0.0);
    return dy / (mode == 2 ? y : gk_pow(y, p - GK_R(1.0)));
}

/* The part that depends on the difference. */
GK_FN gk_f gk_inner(int mode, gk_f d, gk_f y, gk_f p)
{
    if (mode == 2) return d;
    if (mode == 1) return gk_sign(d);
    if (mode == 3) return gk_decode(gk_encode(gk_fabs(d))) == y ? gk_sign(d) : GK_R(0.0);
    if (mode == 0 || d == GK_R(0.0)) return GK_R(0.0);
    return gk_sign(d) * gk_pow(gk_fabs(d), p - GK_R(1.0));
}

/* Place of the pair (i, j) in the upper triangle of n x n, row by row. */
GK_FN gk_i64 gk_triangle(gk_i64 i, gk_i64 j, gk_i64 n)
{
    gk_i64 lo = i < j ? i : j, hi = i < j ? j : i;
    return lo * n - lo * (lo + 1) / 2 + hi - lo - 1;
}

// Units: FLOATS64
/* y[b, i, j] = distance of a[b, i] and b[b, j]; with `packed` only i < j, in the order of gk_triangle. Each thread has 4 x 4 pairs.
 * Launch: one block per tile of 64 x 64 pairs, columns fastest, then rows, then batches. */
GK_KERNEL(distance_tile)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_OUT(gk_t, y), gk_i64 rows, gk_i64 cols, gk_i64 len, int packed, int mode, gk_f p)
{
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f ta[GK_DIST_STEP * GK_DIST_PITCH];
    GK_LOCAL gk_f tb[GK_DIST_STEP * GK_DIST_PITCH];
    int t = gk_lid(), x = t % 16, r = t / 16;
    gk_i64 across = (cols + GK_DIST_TILE - 1) / GK_DIST_TILE, down = (rows + GK_DIST_TILE - 1) / GK_DIST_TILE, g = gk_bid(0);
    gk_i64 n0 = g % across * GK_DIST_TILE, m0 = g / across % down * GK_DIST_TILE, batch = g / across / down;
    gk_i64 steps = packed && n0 + GK_DIST_TILE <= m0 ? 0 : len;
    gk_f acc[4][4];
    GK_UNROLL for (int i = 0; i < 4; i++)
        GK_UNROLL for (int j = 0; j < 4; j++) acc[i][j] = GK_R(0.0);
    for (gk_i64 k0 = 0; k0 < steps; k0 += GK_DIST_STEP) {
        int have = len - k0 < GK_DIST_STEP ? (int)(len - k0) : GK_DIST_STEP;
        GK_UNROLL for (int q = 0; q < GK_DIST_TILE * GK_DIST_STEP / GK_BLOCK; q++) {
            int e = q * GK_BLOCK + t, k = e % GK_DIST_STEP, row = e / GK_DIST_STEP;
            gk_f u = GK_R(0.0), v = GK_R(0.0);
            if (k < have && m0 + row < rows) u = gk_load(a, (batch * rows + m0 + row) * len + k0 + k);
            if (k < have && n0 + row < cols) v = gk_load(b, (batch * cols + n0 + row) * len + k0 + k);
            ta[k * GK_DIST_PITCH + row] = u;
            tb[k * GK_DIST_PITCH + row] = v;
        }
        GK_BARRIER();
        for (int k = 0; k < have; k++) {
            gk_f u[4], v[4];
            GK_UNROLL for (int i = 0; i < 4; i++) u[i] = ta[k * GK_DIST_PITCH + r + 16 * i];
            GK_UNROLL for (int j = 0; j < 4; j++) v[j] = tb[k * GK_DIST_PITCH + x + 16 * j];
            if (mode == 2) {
                GK_UNROLL for (int i = 0; i < 4; i++)
                    GK_UNROLL for (int j = 0; j < 4; j++) {
                        gk_f d = u[i] - v[j];
                        acc[i][j] += d * d;
                    }
            } else {
                GK_UNROLL for (int i = 0; i < 4; i++)
                    GK_UNROLL for (int j = 0; j < 4; j++) acc[i][j] = gk_gather_in(mode, acc[i][j], u[i] - v[j], p);
            }
        }
        GK_BARRIER();
    }
    GK_UNROLL for (int i = 0; i < 4; i++) {
        GK_UNROLL for (int j = 0; j < 4; j++) {
            gk_i64 m = m0 + r + 16 * i, n = n0 + x + 16 * j;
            if (m < rows && n < cols && (!packed || m < n)) {
                gk_i64 at = packed ? gk_triangle(m, n, cols) : (batch * rows + m) * cols + n;
                gk_store(y, at, gk_root(mode, acc[i][j], p));
            }
        }
    }
}

/* da[b, i] (+)= sum over j of the gradient of the distance of a[b, i] and b[b, j]. The gradient is odd, so with a and b exchanged this is db. dy and
 * y lie at b * rows * others + i * step + j * next, or as a triangle with `packed`. With splits, part s of the j goes to part [splits, batches, rows,
 * len]. Each thread has 4 rows and 2 columns. Launch: one block per tile of 64 rows and 32 columns, columns fastest, then rows, splits, batches. */
GK_KERNEL(distance_bwd)(GK_IN(gk_t, dy), GK_IN(gk_t, y), GK_IN(gk_t, a), GK_IN(gk_t, b), GK_OUT(gk_t, da), GK_OUT(gk_f, part), gk_i64 batches,
                        gk_i64 rows, gk_i64 others, gk_i64 len, gk_i64 step, gk_i64 next, int splits, int packed, int mode, gk_f p, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, y); GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_OUT(gk_t, da); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tc[GK_DIST_STEP * GK_DIST_PITCH];
    GK_LOCAL gk_f ty[GK_DIST_STEP * GK_DIST_PITCH];
    GK_LOCAL gk_f tb[GK_DIST_STEP * GK_HALF_PITCH];
    int t = gk_lid(), x = t % 16, r = t / 16;
    gk_i64 across = (len + GK_HALF_TILE - 1) / GK_HALF_TILE, down = (rows + GK_DIST_TILE - 1) / GK_DIST_TILE, g = gk_bid(0);
    gk_i64 n0 = g % across * GK_HALF_TILE, m0 = g / across % down * GK_DIST_TILE, s = g / across / down % splits, batch = g / across / down / splits;
    gk_i64 per = (others + splits - 1) / splits, first = s * per, end = first + per < others ? first + per : others;
    gk_f mine[4][2], acc[4][2];
    GK_UNROLL for (int i = 0; i < 4; i++) {
        GK_UNROLL for (int j = 0; j < 2; j++) {
            gk_i64 m = m0 + r + 16 * i, n = n0 + x + 16 * j;
            acc[i][j] = GK_R(0.0);
            mine[i][j] = GK_R(0.0);
            if (m < rows && n < len) mine[i][j] = gk_load(a, (batch * rows + m) * len + n);
        }
    }
    for (gk_i64 j0 = first; j0 < end; j0 += GK_DIST_STEP) {
        int have = end - j0 < GK_DIST_STEP ? (int)(end - j0) : GK_DIST_STEP;
        GK_UNROLL for (int q = 0; q < GK_DIST_TILE * GK_DIST_STEP / GK_BLOCK; q++) {
            int e = q * GK_BLOCK + t, k = next == 1 ? e % GK_DIST_STEP : e / GK_DIST_TILE, row = next == 1 ? e / GK_DIST_STEP : e % GK_DIST_TILE;
            gk_i64 i = m0 + row, j = j0 + k;
            gk_f c = GK_R(0.0), v = GK_R(0.0);
            if (k < have && i < rows && !(packed && i == j)) {
                gk_i64 at = packed ? gk_triangle(i, j, rows) : batch * rows * others + i * step + j * next;
                v = gk_load(y, at);
                c = gk_outer(mode, gk_load(dy, at), v, p);
            }
            tc[k * GK_DIST_PITCH + row] = c;
            ty[k * GK_DIST_PITCH + row] = v;
        }
        GK_UNROLL for (int q = 0; q < GK_HALF_TILE * GK_DIST_STEP / GK_BLOCK; q++) {
            int e = q * GK_BLOCK + t, n = e % GK_HALF_TILE, k = e / GK_HALF_TILE;
            gk_f v = GK_R(0.0);
            if (k < have && n0 + n < len) v = gk_load(b, (batch * others + j0 + k) * len + n0 + n);
            tb[k * GK_HALF_PITCH + n] = v;
        }
        GK_BARRIER();
        for (int k = 0; k < have; k++) {
            GK_UNROLL for (int i = 0; i < 4; i++) {
                gk_f c = tc[k * GK_DIST_PITCH + r + 16 * i], v = ty[k * GK_DIST_PITCH + r + 16 * i];
                GK_UNROLL for (int j = 0; j < 2; j++) {
                    gk_f h = gk_inner(mode, mine[i][j] - tb[k * GK_HALF_PITCH + x + 16 * j], v, p);
                    /* A pair without weight adds nothing, whatever its difference. */
                    if (c != GK_R(0.0)) acc[i][j] += c * h;
                }
            }
        }
        GK_BARRIER();
    }
    GK_UNROLL for (int i = 0; i < 4; i++) {
        GK_UNROLL for (int j = 0; j < 2; j++) {
            gk_i64 m = m0 + r + 16 * i, n = n0 + x + 16 * j, at = (batch * rows + m) * len + n;
            if (m < rows && n < len) {
                if (part) part[s * batches * rows * len + at] = acc[i][j];
                else gk_store(da, at, accumulate ? gk_load(da, at) + acc[i][j] : acc[i][j]);
            }
        }
    }
}

/* da[i] (+)= sum over s of part[s, i]. Launch: grid-stride. */
GK_KERNEL(distance_combine)(GK_IN(gk_f, part), GK_OUT(gk_t, da), gk_i64 n, int splits, int accumulate)
{
    GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_t, da);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_f v = GK_R(0.0);
        for (int s = 0; s < splits; s++) v += part[s * n + i];
        gk_store(da, i, accumulate ? gk_load(da, i) + v : v);
    }
}

/* ---- vectors in pairs: along the middle axis of [outer, len, inner] ------------------------------------------------------------- */

/* The thread's pair and lane. A pair has `lanes` threads, side by side where inner is 1, else GK_BLOCK / lanes apart. */
typedef struct { gk_i64 item, base; int lane, step, on; } gk_couple;

GK_FN gk_couple gk_couple_of(gk_i64 items, gk_i64 len, gk_i64 inner, int lanes)
{
    gk_couple c;
    int t = gk_lid(), per = GK_BLOCK / lanes;
    c.lane = inner == 1 ? t % lanes : t / per;
    c.step = inner == 1 ? 1 : per;
    c.item = (gk_i64)gk_bid(0) * per + (inner == 1 ? t / lanes : t % per);
    c.on = c.item < items;
    gk_i64 o = inner == 1 ? c.item : c.item / inner;
    c.base = o * len * inner + (inner == 1 ? 0 : c.item - o * inner);
    return c;
}

/* Sum (or with `largest` the maximum) over the lanes of a pair, in each of them. */
GK_FN gk_f gk_over_lanes(gk_f v, int largest, GK_LOCAL_PTR gk_f* tmp, int lane, int step, int lanes)
{
    int t = gk_lid();
    tmp[t] = v;
    GK_BARRIER();
    for (int m = lanes / 2; m > 0; m >>= 1) {
        if (lane < m) tmp[t] = largest ? gk_max(tmp[t], tmp[t + m * step]) : tmp[t] + tmp[t + m * step];
        GK_BARRIER();
    }
    v = tmp[t - lane * step];
    GK_BARRIER();
    return v;
}

/* Elements k, k + 1, .. of a vector; only the first one without wide. */
GK_FN gk_vec gk_elements(GK_GLOBAL const gk_t* x, gk_i64 i, int wide)
{
    gk_vec r;
    if (wide) return gk_loadv(x, i);
    GK_UNROLL for (int u = 0; u < GK_W; u++) r.v[u] = GK_R(0.0);
    r.v[0] = gk_load(x, i);
    return r;
}

/* What a pair's vectors add up to: the sum of the distance in s0; or a.b, a.a and b.b for the cosine (mode 5). */
#define GK_COSINE 5
typedef struct { gk_f s0, s1, s2; } gk_pair_sums;

GK_FN gk_pair_sums gk_pair_sums_of(gk_couple c, GK_GLOBAL const gk_t* a, GK_GLOBAL const gk_t* b, gk_i64 len, gk_i64 inner, int lanes, int wide,
                                   int mode, gk_f p, gk_f eps, GK_LOCAL_PTR gk_f* tmp)
{
    gk_pair_sums r;
    gk_i64 w = wide ? GK_W : 1, end = c.on ? len : 0;
    r.s0 = r.s1 = r.s2 = GK_R(0.0);
    for (gk_i64 k = c.lane * w; k < end; k += lanes * w) {
        gk_vec u = gk_elements(a, c.base + k * inner, wide), v = gk_elements(b, c.base + k * inner, wide);
        GK_UNROLL for (int q = 0; q < GK_W; q++) {
            if (q > 0 && !wide) continue;
            if (mode == GK_COSINE) {
                r.s0 += u.v[q] * v.v[q];
                r.s1 += u.v[q] * u.v[q];
                r.s2 += v.v[q] * v.v[q];
            } else {
                r.s0 = gk_gather_in(mode, r.s0, u.v[q] - v.v[q] + eps, p);
            }
        }
    }
    r.s0 = gk_over_lanes(r.s0, mode == 3, tmp, c.lane, c.step, lanes);
    r.s1 = gk_over_lanes(r.s1, 0, tmp, c.lane, c.step, lanes);
    r.s2 = gk_over_lanes(r.s2, 0, tmp, c.lane, c.step, lanes);
    return r;
}

/* y[item] = distance (of a - b + eps) or cosine. Launch: one block per GK_BLOCK / lanes pairs. */
GK_KERNEL(similarity)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_OUT(gk_t, y), gk_i64 items, gk_i64 len, gk_i64 inner, int lanes, int wide, int mode, gk_f p,
                      gk_f eps)
{
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_couple c = gk_couple_of(items, len, inner, lanes);
    gk_pair_sums s = gk_pair_sums_of(c, a, b, len, inner, lanes, wide, mode, p, eps, tmp);
    if (c.on && c.lane == 0) {
        gk_f r = s.s0 / (gk_max(gk_sqrt(s.s1), eps) * gk_max(gk_sqrt(s.s2), eps));
        gk_store(y, c.item, mode == GK_COSINE ? r : gk_root(mode, s.s0, p));
    }
}

/* da, db (+)= gradients; either may be null. Launch: as similarity. */
GK_KERNEL(similarity_bwd)(GK_IN(gk_t, dy), GK_IN(gk_t, a), GK_IN(gk_t, b), GK_OUT(gk_t, da), GK_OUT(gk_t, db), gk_i64 items, gk_i64 len,
                          gk_i64 inner, int lanes, int wide, int mode, gk_f p, gk_f eps, int add_a, int add_b)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_OUT(gk_t, da); GK_BIND_OUT(gk_t, db);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_couple c = gk_couple_of(items, len, inner, lanes);
    gk_pair_sums s = gk_pair_sums_of(c, a, b, len, inner, lanes, wide, mode, p, eps, tmp);
    gk_f s0 = s.s0;
    gk_i64 w = wide ? GK_W : 1, end = c.on ? len : 0;
    gk_f g = GK_R(0.0), na = gk_sqrt(s.s1), nb = gk_sqrt(s.s2), both = gk_max(na, eps) * gk_max(nb, eps), ka = GK_R(0.0), kb = GK_R(0.0);
    if (c.on) g = gk_load(dy, c.item);
    if (mode == GK_COSINE) {
        gk_f y = s0 / both;
        if (!(na <= eps)) ka = y / (na * na);
        if (!(nb <= eps)) kb = y / (nb * nb);
    } else {
        s0 = gk_root(mode, s0, p);
        g = gk_outer(mode, g, s0, p);
    }
    /* The largest difference shares between equals. */
    gk_f ties = GK_R(0.0);
    for (gk_i64 k = c.lane * w; k < (mode == 3 ? end : 0); k += lanes * w) {
        gk_vec u = gk_elements(a, c.base + k * inner, wide), v = gk_elements(b, c.base + k * inner, wide);
        GK_UNROLL for (int q = 0; q < GK_W; q++)
            if ((q == 0 || wide) && gk_fabs(u.v[q] - v.v[q] + eps) == s0) ties += GK_R(1.0);
    }
    ties = gk_over_lanes(ties, 0, tmp, c.lane, c.step, lanes);
    for (gk_i64 k = c.lane * w; k < end; k += lanes * w) {
        gk_i64 at = c.base + k * inner;
        gk_vec u = gk_elements(a, at, wide), v = gk_elements(b, at, wide), ga, gb;
        GK_UNROLL for (int q = 0; q < GK_W; q++) {
            gk_f d = u.v[q] - v.v[q] + eps;
            if (mode == GK_COSINE) {
                ga.v[q] = g * (v.v[q] / both - ka * u.v[q]);
                gb.v[q] = g * (u.v[q] / both - kb * v.v[q]);
            } else {
                gk_f h = mode == 3 ? (gk_fabs(d) == s0 ? gk_sign(d) / ties : GK_R(0.0)) : gk_inner(mode, d, s0, p);
                ga.v[q] = g == GK_R(0.0) ? g : g * h;
                gb.v[q] = -ga.v[q];
            }
        }
        if (wide) {
            if (da) {
                if (add_a) {
                    gk_vec o = gk_loadv(da, at);
                    GK_UNROLL for (int q = 0; q < GK_W; q++) ga.v[q] += o.v[q];
                }
                gk_storev(da, at, ga);
            }
            if (db) {
                if (add_b) {
                    gk_vec o = gk_loadv(db, at);
                    GK_UNROLL for (int q = 0; q < GK_W; q++) gb.v[q] += o.v[q];
                }
                gk_storev(db, at, gb);
            }
        } else {
            if (da) gk_store(da, at, add_a ? gk_load(da, at) + ga.v[0] : ga.v[0]);
            if (db) gk_store(db, at, add_b ? gk_load(db, at) + gb.v[0] : gb.v[0]);
        }
    }
}
