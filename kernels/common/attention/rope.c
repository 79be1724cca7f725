/* Rotary position embedding (Su et al., 2021, arXiv 2104.09864): (a, b) -> (a cos - b sin, a sin + b cos) for the pairs of the first R elements of a
 * head.
 *
 * x, y [B, L, H, D]. `table` holds the frequencies as fractions of a turn per position, in units of 2^-64: position times frequency modulo one turn
 * is then a product of integers, exact whatever the position. size = {B * L, L, H, D, R, step of the positions by batch, heads per block};
 * sx = {batch, token, head step of x, the same of y}. pairs: 0 for (i, i + R/2), 1 for (2i, 2i + 1). sign -1 rotates back.
 * Launch: axis 0 blocks of GK_BLOCK / lanes tokens, axis 1 groups of heads, which share sine and cosine. With `wide`, 16 bytes at a time.
 * Arithmetic in gk_f. Deterministic. y may be x. Reference: the formula.
 */
#include "common/prelude/turn.h"

/* Heads that are read before the first of them is written. */
#define GK_ROPE_AHEAD 4

GK_FN gk_sin_cos gk_rotation(gk_i64 frequency, gk_i64 position)
{
    gk_u64 turn = (gk_u64)frequency * (gk_u64)position;
#if GK_DTYPE == GK_F64
    int quarter = (int)((turn + 0x2000000000000000ul) >> 62);
    return gk_sin_cos_of(quarter, (gk_f)(gk_i64)(turn - ((gk_u64)quarter << 62)) * 3.4061215800304889e-19); /* 2 pi / 2^64 */
#else
    gk_u32 high = (gk_u32)(turn >> 32);
    int quarter = (int)((high + 0x20000000u) >> 30);
    return gk_sin_cos_of(quarter, (gk_f)(int)(high - ((gk_u32)quarter << 30)) * 1.4629180792671596e-9f); /* 2 pi / 2^32 */
#endif
}

GK_FN void gk_rope_put(GK_GLOBAL gk_t* y, gk_i64 i, gk_vec v, int accumulate)
{
    if (accumulate) {
        gk_vec old = gk_loadv(y, i);
        GK_UNROLL for (int u = 0; u < GK_W; u++) v.v[u] += old.v[u];
    }
    gk_storev(y, i, v);
}

/* The items at `at` of heads h0 to h1 - 1: `pairs`, neighbours turn; else the items at `at` and at + mid. c, s: cosines and sines. */
GK_FN void gk_rope_heads(GK_GLOBAL const gk_t* x, GK_GLOBAL gk_t* y, gk_i64 step_x, gk_i64 step_y, int h0, int h1, int at, int mid, gk_vec c, gk_vec s,
                         int accumulate, const int pairs)
{
    for (int h = h0; h < h1; h += GK_ROPE_AHEAD) {
        gk_raw16 first[GK_ROPE_AHEAD], second[GK_ROPE_AHEAD];
        GK_UNROLL for (int k = 0; k < GK_ROPE_AHEAD; k++) {
            gk_i64 from = (h + k < h1 ? h + k : h) * step_x + at;
            first[k] = gk_load16((GK_GLOBAL const void*)(x + from));
            if (!pairs) second[k] = gk_load16((GK_GLOBAL const void*)(x + from + mid));
        }
        GK_UNROLL for (int k = 0; k < GK_ROPE_AHEAD; k++) {
            gk_i64 to = (h + k) * step_y + at;
            gk_vec a = gk_decode16(first[k]), v, w;
            if (h + k >= h1) break;
            if (pairs) {
                GK_UNROLL for (int u = 0; u < GK_W; u += 2) {
                    v.v[u] = a.v[u] * c.v[u] - a.v[u + 1] * s.v[u];
                    v.v[u + 1] = a.v[u] * s.v[u] + a.v[u + 1] * c.v[u];
                }
            } else {
                gk_vec b = gk_decode16(second[k]);
                GK_UNROLL for (int u = 0; u < GK_W; u++) {
                    v.v[u] = a.v[u] * c.v[u] - b.v[u] * s.v[u];
                    w.v[u] = a.v[u] * s.v[u] + b.v[u] * c.v[u];
                }
                gk_rope_put(y, to + mid, w, accumulate);
            }
            gk_rope_put(y, to, v, accumulate);
        }
    }
}

/* A token by `lanes` threads: 16 bytes at a time. */
GK_FN void gk_rope_wide(GK_GLOBAL const gk_t* x, GK_GLOBAL gk_t* y, GK_GLOBAL const gk_i64* table, gk_i64 position, gk_i64 step_x, gk_i64 step_y,
                        int h0, int h1, int d, int mid, int lane, int lanes, gk_f sign, int accumulate, const int pairs)
{
    int turns = (pairs ? 2 * mid : mid) / GK_W, items = turns + (d - 2 * mid) / GK_W;
    for (int n = lane; n < items; n += lanes) {
        gk_vec c, s;
        if (n < turns) {
            GK_UNROLL for (int u = 0; u < GK_W; u += 1 + pairs) {
                gk_sin_cos r = gk_rotation(table[pairs ? (n * GK_W + u) / 2 : n * GK_W + u], position);
                c.v[u] = r.cos;
                s.v[u] = sign * r.sin;
            }
            gk_rope_heads(x, y, step_x, step_y, h0, h1, n * GK_W, mid, c, s, accumulate, pairs);
        } else {
            int at = 2 * mid + (n - turns) * GK_W;
            for (int h = h0; h < h1; h++) gk_rope_put(y, h * step_y + at, gk_loadv(x, h * step_x + at), accumulate);
        }
    }
}

/* The same by single elements. */
GK_FN void gk_rope_single(GK_GLOBAL const gk_t* x, GK_GLOBAL gk_t* y, GK_GLOBAL const gk_i64* table, gk_i64 position, gk_i64 step_x, gk_i64 step_y,
                          int h0, int h1, int d, int mid, int lane, int lanes, gk_f sign, int accumulate, int pairs)
{
    for (int n = lane; n < d - mid; n += lanes) {
        gk_sin_cos r;
        int i = n + mid, j = i;
        r.sin = GK_R(0.0);
        r.cos = GK_R(1.0);
        if (n < mid) {
            r = gk_rotation(table[n], position);
            r.sin *= sign;
            i = pairs ? 2 * n : n;
            j = pairs ? 2 * n + 1 : n + mid;
        }
        for (int h = h0; h < h1; h++) {
            gk_i64 ax = h * step_x, ay = h * step_y;
            gk_f v = gk_load(x, ax + i), o = gk_load(x, ax + j), w = v * r.cos - o * r.sin, p = v * r.sin + o * r.cos;
            if (n >= mid) w = v;
            if (accumulate) w += gk_load(y, ay + i);
            if (n < mid) {
                if (accumulate) p += gk_load(y, ay + j);
                gk_store(y, ay + j, p);
            }
            gk_store(y, ay + i, w);
        }
    }
}

// Units: FLOATS64
GK_KERNEL(rope)(GK_IN(gk_t, x), GK_IN(int, positions), GK_IN(gk_i64, table), GK_OUT(gk_t, y), GK_DIMS(size), GK_DIMS(sx), gk_i64 offset, int pairs,
                int wide, int lanes, gk_f sign, int accumulate)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, positions); GK_BIND_IN(gk_i64, table); GK_BIND_OUT(gk_t, y);
    int lane = gk_lid() % lanes, len = (int)size.v[1], d = (int)size.v[3], mid = (int)size.v[4] / 2;
    int h0 = gk_bid(1) * (int)size.v[6], h1 = h0 + (int)size.v[6] < (int)size.v[2] ? h0 + (int)size.v[6] : (int)size.v[2];
    gk_i64 per = GK_BLOCK / lanes, hx = sx.v[2], hy = sx.v[5];
    for (gk_i64 token = gk_bid(0) * per + gk_lid() / lanes; token < size.v[0]; token += gk_nblocks(0) * per) {
        gk_i64 b = token / len, l = token % len, position = offset + l;
        if (positions) position = positions[b * size.v[5] + l];
        GK_GLOBAL const gk_t* px = x + b * sx.v[0] + l * sx.v[1];
        GK_GLOBAL gk_t* py = y + b * sx.v[3] + l * sx.v[4];
        if (!wide) gk_rope_single(px, py, table, position, hx, hy, h0, h1, d, mid, lane, lanes, sign, accumulate, pairs);
        else if (pairs) gk_rope_wide(px, py, table, position, hx, hy, h0, h1, d, mid, lane, lanes, sign, accumulate, 1);
        else gk_rope_wide(px, py, table, position, hx, hy, h0, h1, d, mid, lane, lanes, sign, accumulate, 0);
    }
}
