/* Quantization to 8 and 4 bits, and products of such operands: y [m, n] = A [m, k] B^T, B [n, k], both decoded while they are loaded.
 *
 *   value = (code - zero) * scale        code: 0 int8, 1 unsigned 4 bits (even k in the low half of a byte), 2 fp8 e4m3 (finite, NaN 7f and ff),
 *                                        3 fp8 e5m2, 4 not coded (gk_t)
 *
 * An operand's form = {code, type of the scales (0 f32, 1 f16, 2 bf16), rows per scale, products per scale, scales per row, bytes (code 4: elements)
 * per row}; with rows per scale 0 there is one scale for all, and none where the pointer is null. Zero points lie like the scales; 4-bit codes
 * without them are offset by 8. Sums in f32 in the order of k (quant_int: in 32-bit integers, exact). Deterministic.
 * Reference: decoding, then a matrix product; OCP 8-bit floating point specification.
 */
#if GK_DTYPE != GK_F64
#define GK_QUANT_TILE 64
#define GK_QUANT_STEP 32
#define GK_QUANT_PITCH (GK_QUANT_TILE + 1)
#define GK_TAKE (GK_QUANT_STEP * GK_QUANT_TILE / GK_BLOCK)
#define GK_MOST_ROWS 8

GK_FN gk_f gk_signed8(gk_u32 b) { return (gk_f)((int)(b ^ 0x80u) - 128); }

GK_FN gk_f gk_e4m3(gk_u32 b)
{
    gk_u32 e = b >> 3 & 15u, m = b & 7u;
    float v = gk_as_f32((e + 120u) << 23 | m << 20);
    if (e == 0u) v = (float)m * 0.001953125f;
    if (e == 15u && m == 7u) v = GK_NAN;
    return b & 0x80u ? -v : v;
}

/* The value of a byte's code, or of half a byte. */
GK_FN gk_f gk_value_of(int code, gk_u32 b)
{
    if (code == 0) return gk_signed8(b);
    if (code == 2) return gk_e4m3(b);
    if (code == 3) return gk_f16_to_f32((gk_u16)(b << 8));
    return (gk_f)b;
}

GK_FN gk_f gk_scale_at(GK_GLOBAL const gk_u8* p, gk_i64 i, int type)
{
    if (type == 1) return gk_f16_to_f32(((GK_GLOBAL const gk_u16*)p)[i]);
    if (type == 2) return gk_bf16_to_f32(((GK_GLOBAL const gk_u16*)p)[i]);
    return ((GK_GLOBAL const float*)p)[i];
}

/* Place of the scale of element (row, k). */
GK_FN gk_i64 gk_scale_of(gk_dims form, gk_i64 row, gk_i64 k)
{
    if (form.v[2] == 0) return 0;
    return (gk_i64)((gk_u32)row / (gk_u32)form.v[2]) * form.v[4] + (gk_i64)((gk_u32)k / (gk_u32)form.v[3]);
}

/* Scale and zero point. */
typedef struct { gk_f scale, zero; } gk_affine;

GK_FN gk_affine gk_affine_of(GK_GLOBAL const gk_u8* scale, GK_GLOBAL const gk_u8* zero, gk_dims form, gk_i64 row, gk_i64 k)
{
    gk_affine r;
    gk_i64 at = gk_scale_of(form, row, k);
    r.scale = GK_R(1.0);
    r.zero = form.v[0] == 1 ? GK_R(8.0) : GK_R(0.0);
    if (scale) r.scale = gk_scale_at(scale, at, (int)form.v[1]);
    if (zero) r.zero = gk_scale_at(zero, at, (int)form.v[1]);
    return r;
}

GK_FN gk_f gk_element(GK_GLOBAL const gk_u8* q, GK_GLOBAL const gk_u8* scale, GK_GLOBAL const gk_u8* zero, gk_dims form, gk_i64 row, gk_i64 k)
{
    int code = (int)form.v[0];
    if (code == 4) return gk_load((GK_GLOBAL const gk_t*)q, row * form.v[5] + k);
    gk_affine f = gk_affine_of(scale, zero, form, row, k);
    gk_u32 b;
    if (code == 1) {
        b = q[row * form.v[5] + k / 2];
        b = k & 1 ? b >> 4 : b & 15u;
    } else {
        b = q[row * form.v[5] + k];
    }
    return (gk_value_of(code, b) - f.zero) * f.scale;
}

/* The bits of the 8-bit floating-point number nearest to r >= 0, even at ties, at most `most`; `mantissa` bits after the point, exponents offset by
 * `bias`. */
GK_FN gk_u32 gk_fp8_of(float r, int mantissa, int bias, gk_u32 most)
{
    int drop = 23 - mantissa;
    gk_u32 u = gk_as_u32(r), code;
    if (u >> 23 > (gk_u32)(127 - bias)) code = ((u + (1u << (drop - 1)) - 1u + (u >> drop & 1u)) >> drop) - ((gk_u32)(127 - bias) << mantissa);
    else code = (gk_u32)gk_rint(r * gk_as_f32((gk_u32)(127 + mantissa + bias - 1) << 23));
    return code < most ? code : most;
}

/* The code nearest to r. */
GK_FN gk_u32 gk_code_of(int code, gk_f r)
{
    gk_f size = gk_fabs(r), most = code == 1 ? GK_R(7.0) : GK_R(127.0);
    if (code == 2) return gk_isnan(r) ? 0x7fu : gk_fp8_of(size, 3, 7, 0x7eu) | (r < GK_R(0.0) ? 0x80u : 0u);
    if (code == 3) return gk_isnan(r) ? 0x7fu : gk_fp8_of(size, 2, 15, 0x7bu) | (r < GK_R(0.0) ? 0x80u : 0u);
    int q = 0;
    if (!gk_isnan(r)) q = (int)gk_rint(size > most ? most : size);
    if (r < GK_R(0.0)) q = -q;
    return code == 1 ? (gk_u32)(q + 8) : (gk_u32)q & 0xffu;
}

/* The scale of a group of this largest magnitude. */
GK_FN gk_f gk_quant_scale(gk_f largest, gk_f most)
{
    gk_f scale = largest / most;
    return scale == GK_R(0.0) ? GK_R(1.0) : scale;
}

// Units: FLOATS
/* q = the code of x / scale, scale = largest / most (1 if that is 0), of `items` runs of 8 elements; `largest` has one element per scale. Rows of k
 * elements; wide: runs lie in a row and a group, at aligned addresses. Launch: grid-stride over runs. */
GK_KERNEL(quantize)(GK_IN(gk_t, x), GK_IN(gk_t, largest), GK_OUT(gk_u8, q), GK_OUT(float, scale), gk_i64 n, gk_i64 k, gk_i64 scales, GK_DIMS(form),
                    gk_f most, int wide)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, largest); GK_BIND_OUT(gk_u8, q); GK_BIND_OUT(float, scale);
    int code = (int)form.v[0];
    for (gk_i64 i = gk_gid(); i < scales; i += gk_gsize()) scale[i] = (float)gk_quant_scale(gk_load(largest, i), most);
    for (gk_i64 i = gk_gid(); i < (n + 7) / 8; i += gk_gsize()) {
        gk_i64 at = 8 * i;
        if (wide) {
            gk_f s = gk_quant_scale(gk_load(largest, gk_scale_of(form, at / k, at % k)), most);
            gk_u32 low = 0u, high = 0u;
            GK_UNROLL for (int u = 0; u < 8; u += GK_W) {
                gk_vec v = gk_loadv(x, at + u);
                GK_UNROLL for (int w = 0; w < GK_W; w++) {
                    gk_u32 c = gk_code_of(code, v.v[w] / s);
                    if (code == 1) low |= c << (4 * (u + w));
                    else if (u + w < 4) low |= c << (8 * (u + w));
                    else high |= c << (8 * (u + w - 4));
                }
            }
            GK_GLOBAL gk_u32* to = (GK_GLOBAL gk_u32*)(q + (code == 1 ? at / 2 : at));
            to[0] = low;
            if (code != 1) to[1] = high;
        } else {
            gk_u32 pair = 0u;
            for (int u = 0; u < 8 && at + u < n; u++) {
                gk_i64 row = (at + u) / k, c = (at + u) % k;
                gk_u32 b = gk_code_of(code, gk_load(x, at + u) / gk_quant_scale(gk_load(largest, gk_scale_of(form, row, c)), most));
                if (code != 1) q[at + u] = (gk_u8)b;
                else if (u & 1) q[(at + u) / 2] = (gk_u8)(pair | b << 4);
                pair = b;
            }
        }
    }
}

// Units: FLOATS
/* y = value of q * scale, n elements in rows of k, in runs of 8. wide: as for quantize. Launch: grid-stride over runs. */
GK_KERNEL(dequantize)(GK_IN(gk_u8, q), GK_IN(gk_u8, scale), GK_OUT(gk_t, y), gk_i64 n, gk_i64 k, GK_DIMS(form), int wide)
{
    GK_BIND_IN(gk_u8, q); GK_BIND_IN(gk_u8, scale); GK_BIND_OUT(gk_t, y);
    int code = (int)form.v[0];
    for (gk_i64 i = gk_gid(); i < (n + 7) / 8; i += gk_gsize()) {
        gk_i64 at = 8 * i;
        if (wide) {
            gk_affine f = gk_affine_of(scale, 0, form, at / k, at % k);
            GK_GLOBAL const gk_u32* p = (GK_GLOBAL const gk_u32*)(q + (code == 1 ? at / 2 : at));
            gk_u32 low = p[0], high = low;
            if (code != 1) high = p[1];
            GK_UNROLL for (int u = 0; u < 8; u += GK_W) {
                gk_vec v;
                GK_UNROLL for (int w = 0; w < GK_W; w++) {
                    gk_u32 c = code == 1 ? low >> (4 * (u + w)) & 15u : (u + w < 4 ? low : high) >> (8 * ((u + w) % 4)) & 0xffu;
                    v.v[w] = (gk_value_of(code, c) - f.zero) * f.scale;
                }
                gk_storev(y, at + u, v);
            }
        } else {
            for (int u = 0; u < 8 && at + u < n; u++) gk_store(y, at + u, gk_element(q, scale, 0, form, (at + u) / k, (at + u) % k));
        }
    }
}

/* One block per tile of 64 x 64, columns fastest. The tile's first row and column; the row and the place along k from which a thread loads; its first
 * row and column of 4 x 4 elements, 16 apart. */
typedef struct { gk_i64 m0, n0; int row, from, r, x; } gk_quant_place;

GK_FN gk_quant_place gk_quant_place_of(gk_i64 n)
{
    gk_quant_place p;
    gk_i64 across = (n + GK_QUANT_TILE - 1) / GK_QUANT_TILE;
    int t = gk_lid();
    p.m0 = gk_bid(0) / across * GK_QUANT_TILE;
    p.n0 = gk_bid(0) % across * GK_QUANT_TILE;
    p.row = t / (GK_QUANT_STEP / GK_TAKE);
    p.from = t % (GK_QUANT_STEP / GK_TAKE) * GK_TAKE;
    p.r = t / 16;
    p.x = t % 16;
    return p;
}

/* Adds the products of a step. */
#define GK_QUANT_MULTIPLY(name, type) \
    GK_FN void name(GK_LOCAL_PTR const type* ta, GK_LOCAL_PTR const type* tb, type acc[4][4], int r, int x) \
    { \
        GK_UNROLL for (int q = 0; q < GK_QUANT_STEP; q++) { \
            type u[4], v[4]; \
            GK_UNROLL for (int i = 0; i < 4; i++) { u[i] = ta[q * GK_QUANT_PITCH + r + 16 * i]; v[i] = tb[q * GK_QUANT_PITCH + x + 16 * i]; } \
            GK_UNROLL for (int i = 0; i < 4; i++) \
                GK_UNROLL for (int j = 0; j < 4; j++) acc[i][j] += u[i] * v[j]; \
        } \
    }
GK_QUANT_MULTIPLY(gk_quant_multiply, gk_f)

// Units: FLOATS
/* Launch: one block per tile of 64 x 64 elements. */
GK_KERNEL(quant_tile)(GK_IN(gk_u8, a), GK_IN(gk_u8, b), GK_IN(gk_u8, scale_a), GK_IN(gk_u8, scale_b), GK_IN(gk_u8, zero), GK_OUT(gk_t, y), gk_i64 m,
                      gk_i64 n, gk_i64 k, GK_DIMS(fa), GK_DIMS(fb))
{
    GK_BIND_IN(gk_u8, a); GK_BIND_IN(gk_u8, b); GK_BIND_IN(gk_u8, scale_a); GK_BIND_IN(gk_u8, scale_b); GK_BIND_IN(gk_u8, zero); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f ta[GK_QUANT_STEP * GK_QUANT_PITCH];
    GK_LOCAL gk_f tb[GK_QUANT_STEP * GK_QUANT_PITCH];
    gk_quant_place p = gk_quant_place_of(n);
    gk_f acc[4][4];
    GK_UNROLL for (int i = 0; i < 4; i++)
        GK_UNROLL for (int j = 0; j < 4; j++) acc[i][j] = GK_R(0.0);
    for (gk_i64 k0 = 0; k0 < k; k0 += GK_QUANT_STEP) {
        GK_UNROLL for (int q = 0; q < GK_TAKE; q++) {
            gk_i64 at = k0 + p.from + q;
            gk_f u = GK_R(0.0), v = GK_R(0.0);
            if (at < k && p.m0 + p.row < m) u = gk_element(a, scale_a, 0, fa, p.m0 + p.row, at);
            if (at < k && p.n0 + p.row < n) v = gk_element(b, scale_b, zero, fb, p.n0 + p.row, at);
            ta[(p.from + q) * GK_QUANT_PITCH + p.row] = u;
            tb[(p.from + q) * GK_QUANT_PITCH + p.row] = v;
        }
        GK_BARRIER();
        gk_quant_multiply(ta, tb, acc, p.r, p.x);
        GK_BARRIER();
    }
    GK_UNROLL for (int i = 0; i < 4; i++) {
        GK_UNROLL for (int j = 0; j < 4; j++) {
            gk_i64 mm = p.m0 + p.r + 16 * i, nn = p.n0 + p.x + 16 * j;
            if (mm < m && nn < n) gk_store(y, mm * n + nn, acc[i][j]);
        }
    }
}

#if GK_DTYPE == GK_F32
GK_QUANT_MULTIPLY(gk_quant_multiply_int, int)

// Units: F32
/* int8 times int8 in integers, then the scales of row and column. Launch: as quant_tile. */
GK_KERNEL(quant_int)(GK_IN(gk_u8, a), GK_IN(gk_u8, b), GK_IN(float, scale_a), GK_IN(float, scale_b), GK_OUT(float, y), gk_i64 m, gk_i64 n, gk_i64 k)
{
    GK_BIND_IN(gk_u8, a); GK_BIND_IN(gk_u8, b); GK_BIND_IN(float, scale_a); GK_BIND_IN(float, scale_b); GK_BIND_OUT(float, y);
    GK_LOCAL int ta[GK_QUANT_STEP * GK_QUANT_PITCH];
    GK_LOCAL int tb[GK_QUANT_STEP * GK_QUANT_PITCH];
    gk_quant_place p = gk_quant_place_of(n);
    int acc[4][4];
    GK_UNROLL for (int i = 0; i < 4; i++)
        GK_UNROLL for (int j = 0; j < 4; j++) acc[i][j] = 0;
    for (gk_i64 k0 = 0; k0 < k; k0 += GK_QUANT_STEP) {
        GK_UNROLL for (int q = 0; q < GK_TAKE; q++) {
            gk_i64 at = k0 + p.from + q;
            int u = 0, v = 0;
            if (at < k && p.m0 + p.row < m) u = (int)(a[(p.m0 + p.row) * k + at] ^ 0x80u) - 128;
            if (at < k && p.n0 + p.row < n) v = (int)(b[(p.n0 + p.row) * k + at] ^ 0x80u) - 128;
            ta[(p.from + q) * GK_QUANT_PITCH + p.row] = u;
            tb[(p.from + q) * GK_QUANT_PITCH + p.row] = v;
        }
        GK_BARRIER();
        gk_quant_multiply_int(ta, tb, acc, p.r, p.x);
        GK_BARRIER();
    }
    GK_UNROLL for (int i = 0; i < 4; i++) {
        GK_UNROLL for (int j = 0; j < 4; j++) {
            gk_i64 mm = p.m0 + p.r + 16 * i, nn = p.n0 + p.x + 16 * j;
            if (mm < m && nn < n) y[mm * n + nn] = scale_a[mm] * scale_b[nn] * (float)acc[i][j];
        }
    }
}
#endif

// Units: FLOATS
/* Few rows of x: 32 threads read a row of B once for all of them, 8 products each at a time. wide: rows of x and of B are whole groups of 8
 * at aligned addresses. Launch: one block per 8 rows of B. */
GK_KERNEL(quant_rows)(GK_IN(gk_t, x), GK_IN(gk_u8, b), GK_IN(gk_u8, scale), GK_IN(gk_u8, zero), GK_OUT(gk_t, y), int m, gk_i64 n, gk_i64 k,
                      GK_DIMS(form), int wide)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_u8, b); GK_BIND_IN(gk_u8, scale); GK_BIND_IN(gk_u8, zero); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int lane = gk_lid() % 32, code = (int)form.v[0];
    gk_i64 row = (gk_i64)gk_bid(0) * (GK_BLOCK / 32) + gk_lid() / 32, end = row < n ? k : 0;
    gk_f acc[GK_MOST_ROWS];
    GK_UNROLL for (int i = 0; i < GK_MOST_ROWS; i++) acc[i] = GK_R(0.0);
    for (gk_i64 at = (gk_i64)lane * 8; at < end; at += 32 * 8) {
        gk_f w[8];
        if (wide) {
            gk_affine f = gk_affine_of(scale, zero, form, row, at);
            GK_GLOBAL const gk_u32* p = (GK_GLOBAL const gk_u32*)(b + row * form.v[5] + (code == 1 ? at / 2 : at));
            gk_u32 low = p[0], high = low;
            if (code != 1) high = p[1];
            GK_UNROLL for (int u = 0; u < 8; u++) {
                gk_u32 q = code == 1 ? low >> (4 * u) & 15u : (u < 4 ? low : high) >> (8 * (u % 4)) & 0xffu;
                w[u] = (gk_value_of(code, q) - f.zero) * f.scale;
            }
        } else {
            GK_UNROLL for (int u = 0; u < 8; u++) {
                w[u] = GK_R(0.0);
                if (at + u < k) w[u] = gk_element(b, scale, zero, form, row, at + u);
            }
        }
        GK_UNROLL for (int i = 0; i < GK_MOST_ROWS; i++) {
            if (i < m) {
                if (wide) {
                    GK_UNROLL for (int u = 0; u < 8; u += GK_W) {
                        gk_vec v = gk_loadv(x, i * k + at + u);
                        GK_UNROLL for (int q = 0; q < GK_W; q++) acc[i] += w[u + q] * v.v[q];
                    }
                } else {
                    GK_UNROLL for (int u = 0; u < 8; u++)
                        if (at + u < k) acc[i] += w[u] * gk_load(x, i * k + at + u);
                }
            }
        }
    }
    GK_UNROLL for (int i = 0; i < GK_MOST_ROWS; i++) {
        gk_f v = gk_group_sum(acc[i], tmp, 32);
        if (i < m && lane == 0 && row < n) gk_store(y, i * n + row, v);
    }
}
#endif

/* ---- 2:4 sparsity: of four neighbours in a row the two of largest magnitude are kept, the first of equals --------------------------- */

// Units: FLOATS64
/* values [.., k / 2] = the kept ones in order, index [.., k / 4] = place of the first + 4 * place of the second. NaN is kept. Launch: grid-stride
 * over groups of four. */
GK_KERNEL(sparse_pack)(GK_IN(gk_t, x), GK_OUT(gk_t, values), GK_OUT(gk_u8, index), gk_i64 groups)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, values); GK_BIND_OUT(gk_u8, index);
    for (gk_i64 g = gk_gid(); g < groups; g += gk_gsize()) {
        int first = 0, second = -1;
        gk_f best = GK_R(-1.0), next = GK_R(-1.0);
        for (int u = 0; u < 4; u++) {
            gk_f v = gk_fabs(gk_load(x, 4 * g + u));
            if (gk_isnan(v)) v = GK_INF;
            if (v > best) {
                next = best;
                second = first;
                best = v;
                first = u;
            } else if (v > next) {
                next = v;
                second = u;
            }
        }
        int lo = first < second ? first : second, hi = first < second ? second : first;
        values[2 * g] = x[4 * g + lo];
        values[2 * g + 1] = x[4 * g + hi];
        index[g] = (gk_u8)(lo + 4 * hi);
    }
}

/* The dense rows again, 0 where nothing was kept. Launch: grid-stride over groups of four. */
GK_KERNEL(sparse_unpack)(GK_IN(gk_t, values), GK_IN(gk_u8, index), GK_OUT(gk_t, y), gk_i64 groups)
{
    GK_BIND_IN(gk_t, values); GK_BIND_IN(gk_u8, index); GK_BIND_OUT(gk_t, y);
    for (gk_i64 g = gk_gid(); g < groups; g += gk_gsize()) {
        int lo = index[g] & 3, hi = index[g] >> 2 & 3;
        for (int u = 0; u < 4; u++) {
            if (u == lo) y[4 * g + u] = values[2 * g];
            else if (u == hi) y[4 * g + u] = values[2 * g + 1];
            else gk_store(y, 4 * g + u, GK_R(0.0));
        }
    }
}
