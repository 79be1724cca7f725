/* Rotary position embedding (Su et al., 2021, arXiv 2104.09864): (a, b) -> (a cos - b sin, a sin + b cos) for the pairs of the first R elements of a
 * head.
 *
 * x, y [B, L, H, D]. `table` holds the frequencies as fractions of a turn per position, in units of 2^-64: position times frequency modulo one turn
 * is then a product of integers, exact whatever the position. size = {B * L, L, H, D, R, step of the positions by batch, heads per block};
 * sx = {batch, token, head step of x, the same of y}. pairs: 0 for (i, i + R/2), 1 for (2i, 2i + 1). sign -1 rotates back.
 * Launch: axis 0 blocks of GK_BLOCK / lanes tokens, axis 1 groups of heads, which share sine and cosine. With `wide`, 16 bytes at a time.
 * Arithmetic in gk_f. Deterministic. y may be x. Reference: the formula.
 */
GK_FN gk_f gk_angle(gk_i64 frequency, gk_i64 position)
{
    gk_u64 turn = (gk_u64)frequency * (gk_u64)position;
#if GK_DTYPE == GK_F64
    return (gk_f)(gk_i64)turn * 3.4061215800304889e-19; /* 2 pi / 2^64 */
#else
    return (gk_f)(int)(gk_u32)(turn >> 32) * 1.4629180792671596e-9f; /* 2 pi / 2^32 */
#endif
}

// Units: FLOATS64
GK_KERNEL(rope)(GK_IN(gk_t, x), GK_IN(int, positions), GK_IN(gk_i64, table), GK_OUT(gk_t, y), GK_DIMS(size), GK_DIMS(sx), gk_i64 offset, int pairs,
                int wide, int lanes, gk_f sign, int accumulate)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, positions); GK_BIND_IN(gk_i64, table); GK_BIND_OUT(gk_t, y);
    int lane = gk_lid() % lanes, len = (int)size.v[1], d = (int)size.v[3], mid = (int)size.v[4] / 2;
    int h0 = gk_bid(1) * (int)size.v[6], h1 = h0 + (int)size.v[6] < (int)size.v[2] ? h0 + (int)size.v[6] : (int)size.v[2];
    gk_i64 per = GK_BLOCK / lanes;
    for (gk_i64 token = gk_bid(0) * per + gk_lid() / lanes; token < size.v[0]; token += gk_nblocks(0) * per) {
        gk_i64 b = token / len, l = token % len, position = offset + l;
        if (positions) position = positions[b * size.v[5] + l];
        GK_GLOBAL const gk_t* px = x + b * sx.v[0] + l * sx.v[1];
        GK_GLOBAL gk_t* py = y + b * sx.v[3] + l * sx.v[4];
        if (wide) {
            int turns = (pairs ? 2 * mid : mid) / GK_W, items = turns + (d - 2 * mid) / GK_W;
            for (int n = lane; n < items; n += lanes) {
                gk_vec c, s;
                GK_UNROLL for (int u = 0; u < GK_W; u++) { c.v[u] = GK_R(1.0); s.v[u] = GK_R(0.0); }
                if (n < turns) {
                    GK_UNROLL for (int u = 0; u < GK_W; u++) {
                        gk_f a = gk_angle(table[pairs ? (n * GK_W + u) / 2 : n * GK_W + u], position);
                        c.v[u] = gk_cos(a);
                        s.v[u] = sign * gk_sin(a);
                    }
                }
                int at = n < turns ? n * GK_W : 2 * mid + (n - turns) * GK_W;
                for (int h = h0; h < h1; h++) {
                    gk_i64 ax = h * sx.v[2] + at, ay = h * sx.v[5] + at;
                    gk_vec v = gk_loadv(px, ax), w = v;
                    if (!pairs && n < turns) {
                        gk_vec o = gk_loadv(px, ax + mid), p;
                        GK_UNROLL for (int u = 0; u < GK_W; u++) {
                            w.v[u] = v.v[u] * c.v[u] - o.v[u] * s.v[u];
                            p.v[u] = v.v[u] * s.v[u] + o.v[u] * c.v[u];
                        }
                        if (accumulate) {
                            gk_vec old = gk_loadv(py, ay + mid);
                            GK_UNROLL for (int u = 0; u < GK_W; u++) p.v[u] += old.v[u];
                        }
                        gk_storev(py, ay + mid, p);
                    } else {
                        GK_UNROLL for (int u = 0; u < GK_W; u += 2) {
                            w.v[u] = v.v[u] * c.v[u] - v.v[u + 1] * s.v[u];
                            w.v[u + 1] = v.v[u] * s.v[u] + v.v[u + 1] * c.v[u];
                        }
                        if (n >= turns) w = v;
                    }
                    if (accumulate) {
                        gk_vec old = gk_loadv(py, ay);
                        GK_UNROLL for (int u = 0; u < GK_W; u++) w.v[u] += old.v[u];
                    }
                    gk_storev(py, ay, w);
                }
            }
        } else {
            for (int n = lane; n < d - mid; n += lanes) {
                gk_f c = GK_R(1.0), s = GK_R(0.0);
                int i = n + mid, j = i;
                if (n < mid) {
                    gk_f a = gk_angle(table[n], position);
                    c = gk_cos(a);
                    s = sign * gk_sin(a);
                    i = pairs ? 2 * n : n;
                    j = pairs ? 2 * n + 1 : n + mid;
                }
                for (int h = h0; h < h1; h++) {
                    gk_i64 ax = h * sx.v[2], ay = h * sx.v[5];
                    gk_f v = gk_load(px, ax + i), o = gk_load(px, ax + j), w = v * c - o * s, p = v * s + o * c;
                    if (n >= mid) w = v;
                    if (accumulate) w += gk_load(py, ay + i);
                    if (n < mid) {
                        if (accumulate) p += gk_load(py, ay + j);
                        gk_store(py, ay + j, p);
                    }
                    gk_store(py, ay + i, w);
                }
            }
        }
    }
}
