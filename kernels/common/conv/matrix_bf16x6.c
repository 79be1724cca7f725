/* Convolution of f32 on matrix cores by six products in bf16, forward, adjoint and weight gradient; no groups. The implicit products are those of
 * matrix.c.
 *
 * An f32 number has 24 leading bits and is the sum of three bf16 numbers of eight bits each, its parts: large, middle, small. A product is the sum of the
 * products of parts but for three of the smallest, which together are below 2^-21 of it, 2^-23 on average. Sums are float, those of the large parts apart
 * from the others, so that what is small is not lost beside them. Deterministic.
 *
 * A finite number whose lower parts are 0 has 2^-126 in their place, so that an infinity times it is an infinity; numbers below 2^-100 do not, and those
 * below 2^-109 lose their bits below 2^-133. Units are of bf16, as the operands; what a convolution adds and writes is float. Needs wgmma
 * (GK_WARP_GROUPS). Reference: Henry, Tang, Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations", 2019.
 */
#include "common/prelude/matrix.h"
#define GK_CONV_FLOAT 1
#include "window_table.h"
#include "matrix_windows.h"

#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 1

#define GK_CONV_PARTS 3
#define GK_CONV_STAGES(rows) 3
/* Of 64 rows: both halves of the warps have the same places, and half of the products each. */
#define GK_CONV_PLACES(rows) 128

/* Sums of the larger half of the products: of the newest stages, which matrix cores round to zero at each step, and of those before; and of the others. */
typedef struct { float c[16][4], before[16][4], rest[16][4]; } gk_sums;
GK_FN void gk_conv_clear(gk_sums* s)
{
    gk_mm_clear(s->c, 128);
    gk_mm_clear(s->before, 128);
    gk_mm_clear(s->rest, 128);
    gk_mm_ready(s->c, 128);
    gk_mm_ready(s->rest, 128);
}

/* sums += part a of the left operand times part b of the right one. */
GK_FN void gk_parts_multiply(float (*c)[4], GK_LOCAL_PTR const gk_raw16* stage, const int rows, int a, int b, const int by)
{
    const int chunks = (rows + 128) * 8;
    gk_mm_tiles_by(c, 128, stage + a * chunks, rows, gk_lid() / 32 * 16 % rows, 0, 64, stage + b * chunks + rows * 8, by);
}
/* Large times large, middle times middle, large times small; the other half of the warps large times middle, middle times large, small times large. */
GK_FN void gk_conv_multiply(gk_sums* s, GK_LOCAL_PTR const gk_raw16* stage, const int rows, const int by)
{
    int side = gk_lid() / 128;
    gk_parts_multiply(s->c, stage, rows, 0, side, by);
    gk_parts_multiply(s->rest, stage, rows, 1, 1 - side, by);
    gk_parts_multiply(s->rest, stage, rows, 2 * side, 2 - 2 * side, by);
}
/* Waits for the products of the stages before number n, and after every fourth for all, to add the sums up in float. */
GK_FN void gk_conv_products_wait(gk_sums* s, int n)
{
    GK_MM_WAIT(3);
    if (n % 4 != 3) return;
    GK_MM_WAIT(0);
    gk_mm_ready(s->c, 128);
    gk_mm_ready(s->rest, 128);
    GK_UNROLL for (int i = 0; i < 64; i++) s->before[i / 4][i % 4] += s->c[i / 4][i % 4];
    gk_mm_clear(s->c, 128);
    gk_mm_ready(s->c, 128);
}
GK_FN void gk_conv_join(gk_sums* s, GK_LOCAL_PTR float* room)
{
    gk_mm_ready(s->c, 128);
    gk_mm_ready(s->rest, 128);
    GK_BARRIER();
    GK_UNROLL for (int i = 0; i < 64; i++) {
        s->c[i / 4][i % 4] += s->before[i / 4][i % 4];
        if (gk_lid() >= 128) room[i * 128 + gk_lid() - 128] = s->rest[i / 4][i % 4] + s->c[i / 4][i % 4];
    }
    GK_BARRIER();
    GK_UNROLL for (int i = 0; i < 64; i++)
        if (gk_lid() < 128) s->c[i / 4][i % 4] += s->rest[i / 4][i % 4] + room[i * 128 + gk_lid()];
}

#include "matrix_tile.h"

/* ---- parts of floats --------------------------------------------------------------------------------------------------------------------- */

/* The bits of the parts, each rounded to zero, so that all have the number's sign. */
typedef struct { gk_u32 v[3]; } gk_parts;
GK_FN gk_parts gk_parts_of(float x)
{
    gk_u32 bits = gk_as_u32(x), magnitude = bits & 0x7fffffffu, least = (bits & 0x80000000u) | 0x00800000u;
    float rest = x - gk_as_f32(bits & 0xffff0000u);
    gk_parts p;
    p.v[0] = bits & 0xffff0000u;
    p.v[1] = gk_as_u32(rest) & 0xffff0000u;
    p.v[2] = gk_as_u32(rest - gk_as_f32(p.v[1]));
    if (magnitude >= 0x7f800000u) p.v[1] = p.v[2] = 0;
    /* A NaN whose upper bits are those of an infinity. */
    if (magnitude > 0x7f800000u) p.v[0] |= 0x00400000u;
    /* 2^-100 */
    if (magnitude >= 0x0d800000u) {
        if (p.v[1] << 1 == 0) p.v[1] = least;
        if (p.v[2] << 1 == 0) p.v[2] = least;
    }
    GK_UNROLL for (int i = 0; i < 3; i++) p.v[i] >>= 16;
    return p;
}

/* Parts of eight numbers to p, p + n, p + 2 n, which are multiples of 16 bytes. */
GK_FN void gk_parts_store(GK_GLOBAL gk_t* p, gk_i64 n, const float x[8])
{
    gk_parts a[8];
    GK_UNROLL for (int u = 0; u < 8; u++) a[u] = gk_parts_of(x[u]);
    GK_UNROLL for (int i = 0; i < 3; i++, p += n)
        gk_store16((GK_GLOBAL void*)p, gk_make16(a[0].v[i] | a[1].v[i] << 16, a[2].v[i] | a[3].v[i] << 16, a[4].v[i] | a[5].v[i] << 16,
                                                 a[6].v[i] | a[7].v[i] << 16));
}

#define GK_PARTS_SIDE 64

// Units: BF16
/* parts [3, N, places, C] of x [N, r, places], zeros for the channels from r on.
 * Launch: axis 0 = tiles of 64 places (fastest) x tiles of 64 channels x images. */
GK_KERNEL(conv_parts_last)(GK_IN(float, x), GK_OUT(gk_t, parts), int r, int places, int channels, int images)
{
    GK_LOCAL float tile[GK_PARTS_SIDE * (GK_PARTS_SIDE + 1)];
    GK_BIND_IN(float, x); GK_BIND_OUT(gk_t, parts);
    int across = (places + GK_PARTS_SIDE - 1) / GK_PARTS_SIDE, down = (channels + GK_PARTS_SIDE - 1) / GK_PARTS_SIDE;
    int q0 = gk_bid(0) % across * GK_PARTS_SIDE, rest = gk_bid(0) / across, c0 = rest % down * GK_PARTS_SIDE, n = rest / down;
    gk_i64 size = (gk_i64)images * places * channels;
    for (int c = gk_lid() / GK_PARTS_SIDE; c < GK_PARTS_SIDE; c += GK_BLOCK / GK_PARTS_SIDE) {
        int q = gk_lid() % GK_PARTS_SIDE, exists = q0 + q < places && c0 + c < r;
        tile[c * (GK_PARTS_SIDE + 1) + q] = exists ? x[((gk_i64)n * r + c0 + c) * places + q0 + q] : 0.0f;
    }
    GK_BARRIER();
    for (int q = gk_lid() / 8; q < GK_PARTS_SIDE && q0 + q < places; q += GK_BLOCK / 8) {
        int c = gk_lid() % 8 * 8;
        float v[8];
        GK_UNROLL for (int u = 0; u < 8; u++) v[u] = tile[(c + u) * (GK_PARTS_SIDE + 1) + q];
        if (c0 + c < channels) gk_parts_store(parts + ((gk_i64)n * places + q0 + q) * channels + c0 + c, size, v);
    }
}

/* The same where there are few channels; or (`fold`), of up to four channels, parts [3, N, places / 2, 8]: four channels each of two neighbouring places.
 * Launch: grid-stride over runs of eight channels of a place, places fastest. */
GK_KERNEL(conv_parts_few)(GK_IN(float, x), GK_OUT(gk_t, parts), int r, int places, int channels, int images, int fold)
{
    GK_BIND_IN(float, x); GK_BIND_OUT(gk_t, parts);
    int steps = fold ? places / 2 : places;
    gk_i64 size = (gk_i64)images * steps * channels;
    for (gk_i64 i = gk_gid(); i < size / 8; i += gk_gsize()) {
        gk_i64 rest = i / steps, q = i - rest * steps, n = rest / (channels / 8);
        int c = (int)(rest - n * (channels / 8)) * 8;
        float v[8];
        GK_UNROLL for (int u = 0; u < 8; u++) {
            int at = fold ? u % 4 : c + u;
            v[u] = at < r ? x[(n * r + at) * places + (fold ? 2 * q + u / 4 : q)] : 0.0f;
        }
        gk_parts_store(parts + (n * steps + q) * channels + c, size, v);
    }
}

/* parts [3, pitch] of the n numbers of x, zeros behind them; pitch is a multiple of 8. Launch: grid-stride over runs of eight. */
GK_KERNEL(conv_parts)(GK_IN(float, x), GK_OUT(gk_t, parts), gk_i64 n, gk_i64 pitch)
{
    GK_BIND_IN(float, x); GK_BIND_OUT(gk_t, parts);
    for (gk_i64 i = gk_gid() * 8; i < pitch; i += gk_gsize() * 8) {
        float v[8];
        GK_UNROLL for (int u = 0; u < 8; u++) v[u] = i + u < n ? x[i + u] : 0.0f;
        gk_parts_store(parts + i, pitch, v);
    }
}

/* wt[part, m, t, c] of w, the rest as conv_matrix_weights; `fold` as gk_tap. */
GK_KERNEL(conv_parts_weights)(GK_IN(float, w), GK_OUT(gk_t, wt), gk_i64 n, int rows, int r, int channels, int taps, int back, int across, int fold)
{
    GK_BIND_IN(float, w); GK_BIND_OUT(gk_t, wt);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        int line = (int)(i / channels), c = (int)(i - (gk_i64)line * channels);
        int folded = fold ? taps / across * gk_taps_folded(across, fold) : taps, m = line / folded;
        gk_tap a = gk_tap_folded(line - m * folded, c, across, fold);
        gk_i64 from = (gk_i64)(back ? a.channel * rows + m : m * r + a.channel) * taps + a.tap;
        gk_parts p = gk_parts_of(a.tap >= 0 && a.channel < r ? w[from] : 0.0f);
        GK_UNROLL for (int part = 0; part < 3; part++) wt[i + part * n] = gk_half_from_bits((gk_u16)p.v[part]);
    }
}

/* out.v[6] = stages of a run, or 0: then y is partial sums [runs, phases, rows, out.v[7] places of the largest phase in all images] (conv_split).
 * Launch: as conv_matrix64, in tiles of 128 places, x runs. */
GK_KERNEL(conv_bf16x6)(GK_IN(gk_t, x), GK_IN(gk_t, wt), GK_IN(float, scale), GK_IN(float, bias), GK_IN(float, residual), GK_OUT(float, y), GK_OUT(float, z),
                       GK_DIMS(map), GK_DIMS(out), GK_DIMS(win), GK_DIMS(geo), int back, int wide, int accumulate, int act, gk_f q_act)
{
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, GK_CONV_STAGES(64) * 4608);
    GK_CONV_BIND();
    GK_CONV_TILE(64);
}

/* Launch: as conv_matrix_weight, in tiles of 64 rows. */
GK_KERNEL(conv_bf16x6_weight)(GK_IN(gk_t, x), GK_IN(gk_t, dy), GK_OUT(float, part), GK_DIMS(map), GK_DIMS(out), GK_DIMS(win), GK_DIMS(geo), GK_DIMS(size))
{
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, GK_CONV_STAGES(64) * 4608);
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, dy); GK_BIND_OUT(float, part);
    gk_weight_tile(x, dy, part, map, out, win, geo, size, 64, tiles);
}
