/* Adam and AdamW with moments in bf16 or in 8-bit codes, for a list of tensors (the table of optimizer/adaptive_rules.h: states are m, v, scales).
 *
 * Codes: blocks of 256 elements of a tensor share scales a (largest |m|) and b (largest sqrt(v)); m = a c / 127 with c a signed byte,
 * v = (b c / 255)^2 with c >= 1 where v > 0. scales: [2, blocks of the tensor]. bf16: m to nearest even.
 * v is rounded at random where `random` is set: element i of tensor j (counted from `first_tensor`) uses word i % 4 of Philox block offset + i / 4 of
 * stream + j, and is rounded up where u is below the fraction; else to nearest. Arithmetic in f32; the step uses the moments before they are rounded.
 *
 * Launch: one block per chunk of GK_CHUNK elements; runs of 32 threads take 256 elements, 8 each. Deterministic.
 * Reference: Dettmers et al. (2022), with other codes.
 */
#include "adaptive_rules.h"

#define GK_OPTIM_EACH 8

/* Byte k of eight. */
#define GK_BYTE(q, k) (((k) < 4 ? (q)[0] : (q)[1]) >> (8 * ((k) % 4)) & 0xffu)
GK_FN gk_f gk_signed_byte(gk_u32 c) { return (gk_f)((int)c - (c > 127u ? 256 : 0)); }

/* v >= 0 in bf16, up where u is below the fraction that is cut off. */
GK_FN gk_u16 gk_bf16_random(float v, gk_u32 word)
{
    gk_u32 u = gk_as_u32(v);
    if ((u & 0x7f800000u) == 0x7f800000u) return gk_f32_to_bf16(v);
    return (gk_u16)((u >> 16) + ((word >> 16) < (u & 0xffffu) ? 1u : 0u));
}

/* The arrays of a tensor: parameters in storage or as gk_f, gradient, moments as codes or as bf16. */
typedef struct {
    GK_GLOBAL gk_t* w;
    GK_GLOBAL gk_f* wm;
    GK_GLOBAL const gk_t* g;
    GK_GLOBAL gk_u8* m;
    GK_GLOBAL gk_u8* v;
    GK_GLOBAL gk_u16* m16;
    GK_GLOBAL gk_u16* v16;
} gk_packed;

/* Parameters a, gradients b and moments x, y (codes as they are) of `count` elements from i on; whole: all of them, aligned. */
GK_FN void gk_packed_read(gk_packed p, gk_i64 i, int count, int whole, int codes, int master, gk_f* a, gk_f* b, gk_f* x, gk_f* y)
{
    if (whole) {
        GK_UNROLL for (int j = 0; j < GK_OPTIM_EACH; j += GK_W) {
            gk_vec q = master ? gk_loads(p.wm, i + j) : gk_loadv(p.w, i + j), r = gk_loadv(p.g, i + j);
            GK_UNROLL for (int k = 0; k < GK_W; k++) { a[j + k] = q.v[k]; b[j + k] = r.v[k]; }
        }
        if (codes) {
            GK_GLOBAL const gk_u32* qm = (GK_GLOBAL const gk_u32*)(p.m + i);
            GK_GLOBAL const gk_u32* qv = (GK_GLOBAL const gk_u32*)(p.v + i);
            gk_u32 cm[2], cv[2];
            cm[0] = qm[0]; cm[1] = qm[1]; cv[0] = qv[0]; cv[1] = qv[1];
            GK_UNROLL for (int k = 0; k < GK_OPTIM_EACH; k++) { x[k] = gk_signed_byte(GK_BYTE(cm, k)); y[k] = (gk_f)GK_BYTE(cv, k); }
        } else {
            gk_raw16 qm = gk_load16((GK_GLOBAL const void*)(p.m16 + i)), qv = gk_load16((GK_GLOBAL const void*)(p.v16 + i));
            gk_u32 cm[4], cv[4];
            cm[0] = qm.x; cm[1] = qm.y; cm[2] = qm.z; cm[3] = qm.w;
            cv[0] = qv.x; cv[1] = qv.y; cv[2] = qv.z; cv[3] = qv.w;
            GK_UNROLL for (int k = 0; k < GK_OPTIM_EACH; k++) {
                x[k] = gk_bf16_to_f32((gk_u16)(cm[k / 2] >> (16 * (k % 2))));
                y[k] = gk_bf16_to_f32((gk_u16)(cv[k / 2] >> (16 * (k % 2))));
            }
        }
    } else {
        GK_UNROLL for (int k = 0; k < GK_OPTIM_EACH; k++)
            if (k < count) {
                if (master) a[k] = p.wm[i + k]; else a[k] = gk_load(p.w, i + k);
                b[k] = gk_load(p.g, i + k);
                if (codes) { x[k] = gk_signed_byte(p.m[i + k]); y[k] = (gk_f)p.v[i + k]; }
                else { x[k] = gk_bf16_to_f32(p.m16[i + k]); y[k] = gk_bf16_to_f32(p.v16[i + k]); }
            }
    }
}

/* The moments as codes under the scales tm and tv, or as bf16; words: random ones, if `random`. */
GK_FN void gk_packed_encode(gk_u32* cm, gk_u32* cv, const gk_f* x, const gk_f* y, const gk_u32* words, gk_f tm, gk_f tv, int codes, int random)
{
    /* A scale that is 0 or not finite leaves no codes; the latter makes its whole block NaN. */
    gk_f um = tm > GK_R(0.0) && tm < GK_INF ? GK_R(127.0) / tm : GK_R(0.0), uv = tv > GK_R(0.0) && tv < GK_INF ? GK_R(255.0) / tv : GK_R(0.0);
    GK_UNROLL for (int k = 0; k < GK_OPTIM_EACH; k++) {
        if (codes) {
            gk_f q = um > GK_R(0.0) ? gk_rint(x[k] * um) : GK_R(0.0), s = uv > GK_R(0.0) ? y[k] * uv : GK_R(0.0), low = gk_floor(s);
            if (!random) low = gk_rint(s);
            else if (gk_unit(words[k]) < s - low) low += GK_R(1.0);
            if (low > GK_R(255.0)) low = GK_R(255.0);
            if (low < GK_R(1.0) && s > GK_R(0.0)) low = GK_R(1.0);
            cm[k] = (gk_u32)(int)q & 0xffu;
            cv[k] = (gk_u32)(int)low;
        } else {
            cm[k] = gk_f32_to_bf16(x[k]);
            cv[k] = random ? gk_bf16_random(y[k], words[k]) : gk_f32_to_bf16(y[k]);
        }
    }
}

GK_FN void gk_packed_write(gk_packed p, gk_i64 i, int count, int whole, int codes, int master, const gk_f* a, const gk_u32* cm, const gk_u32* cv)
{
    if (whole) {
        GK_UNROLL for (int j = 0; j < GK_OPTIM_EACH; j += GK_W) {
            gk_vec q;
            GK_UNROLL for (int k = 0; k < GK_W; k++) q.v[k] = a[j + k];
            if (master) gk_stores(p.wm, i + j, q); else gk_storev(p.w, i + j, q);
        }
        if (codes) {
            GK_GLOBAL gk_u32* qm = (GK_GLOBAL gk_u32*)(p.m + i);
            GK_GLOBAL gk_u32* qv = (GK_GLOBAL gk_u32*)(p.v + i);
            GK_UNROLL for (int k = 0; k < 2; k++) {
                qm[k] = cm[4 * k] | cm[4 * k + 1] << 8 | cm[4 * k + 2] << 16 | cm[4 * k + 3] << 24;
                qv[k] = cv[4 * k] | cv[4 * k + 1] << 8 | cv[4 * k + 2] << 16 | cv[4 * k + 3] << 24;
            }
        } else {
            gk_store16((GK_GLOBAL void*)(p.m16 + i), gk_make16(cm[0] | cm[1] << 16, cm[2] | cm[3] << 16, cm[4] | cm[5] << 16, cm[6] | cm[7] << 16));
            gk_store16((GK_GLOBAL void*)(p.v16 + i), gk_make16(cv[0] | cv[1] << 16, cv[2] | cv[3] << 16, cv[4] | cv[5] << 16, cv[6] | cv[7] << 16));
        }
    } else {
        GK_UNROLL for (int k = 0; k < GK_OPTIM_EACH; k++)
            if (k < count) {
                if (master) p.wm[i + k] = a[k]; else gk_store(p.w, i + k, a[k]);
                if (codes) { p.m[i + k] = (gk_u8)cm[k]; p.v[i + k] = (gk_u8)cv[k]; }
                else { p.m16[i + k] = (gk_u16)cm[k]; p.v16[i + k] = (gk_u16)cv[k]; }
            }
    }
}

typedef struct {
    gk_i64 seed, stream, offset;
    gk_f lr, c1, c2, log1, log2, p0, p1, p2, p3, p4, p5;
    int maximize, first_tensor;
} gk_adam_packed_args;

// Units: FLOATS
GK_KERNEL(adam_packed)(GK_IN(gk_i64, table), int tensors, GK_OUT(gk_t, w), GK_IN(gk_t, g), GK_OUT(gk_u8, m), GK_OUT(gk_u8, v), GK_OUT(float, scales),
                       GK_OUT(gk_u16, copy), int codes, int master, int copy_kind, GK_IN(float, lr_dev), GK_IN(gk_i64, step),
                       GK_IN(float, inv_scale), GK_IN(float, found_inf), int decoupled, int random, GK_IN(gk_i64, more), GK_IN(gk_f, numbers),
                       GK_BY_VALUE(gk_adam_packed_args, args))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_i64, table); GK_BIND_OUT(gk_t, w); GK_BIND_IN(gk_t, g); GK_BIND_OUT(gk_u8, m); GK_BIND_OUT(gk_u8, v); GK_BIND_OUT(float, scales);
    GK_BIND_OUT(gk_u16, copy); GK_BIND_IN(float, lr_dev); GK_BIND_IN(gk_i64, step); GK_BIND_IN(float, inv_scale); GK_BIND_IN(float, found_inf);
    GK_BIND_IN(gk_i64, more); GK_BIND_IN(gk_f, numbers);
    int skip = 0;
    if (found_inf) skip = found_inf[0] != 0.0f;
    gk_step h;
    gk_f unscale = inv_scale ? (gk_f)inv_scale[0] : GK_R(1.0);
    if (args.maximize) unscale = -unscale;
    h.lr = lr_dev ? (gk_f)lr_dev[0] : args.lr;
    h.t = h.q0 = h.q1 = GK_R(0.0);
    h.first = h.flag = 0;
    h.c1 = args.c1; h.c2 = args.c2; h.p0 = args.p0; h.p1 = args.p1; h.p2 = args.p2; h.p3 = args.p3; h.p4 = args.p4; h.p5 = args.p5;
    if (numbers) h = gk_step_numbers(h, numbers);
    if (step) h = gk_step_at(h, step[0], args.log1, args.log2);
    gk_u64 start = (gk_u64)args.offset + (more ? (gk_u64)more[0] : 0ul);
    gk_i64 chunks = skip ? 0 : table[tensors * GK_OPTIM_ROW];
    for (gk_i64 c = gk_bid(0); c < chunks; c += gk_nblocks(0)) {
        int at = gk_row_of(table, tensors, c);
        GK_GLOBAL const gk_i64* row = table + at * GK_OPTIM_ROW;
        gk_i64 begin = (c - row[0]) * GK_CHUNK, len = row[1], end = begin + GK_CHUNK < len ? begin + GK_CHUNK : len;
        gk_i64 os = row[6], oc = row[8], blocks = (len + 255) / 256;
        int aligned = (row[2] | row[3] | row[4] | row[5]) % GK_OPTIM_EACH == 0;
        gk_packed p;
        p.w = w + row[2]; p.wm = (GK_GLOBAL gk_f*)w + row[2]; p.g = g + row[3]; p.m = m + row[4]; p.v = v + row[5];
        p.m16 = (GK_GLOBAL gk_u16*)m + row[4]; p.v16 = (GK_GLOBAL gk_u16*)v + row[5];
        /* Every thread of the block makes the same number of rounds: the maxima are collectives. */
        for (gk_i64 base = begin; base < end; base += GK_BLOCK * GK_OPTIM_EACH) {
            gk_i64 i = base + gk_lid() * GK_OPTIM_EACH, block = i / 256;
            int count = i >= end ? 0 : end - i < GK_OPTIM_EACH ? (int)(end - i) : GK_OPTIM_EACH, whole = aligned && count == GK_OPTIM_EACH;
            gk_f a[GK_OPTIM_EACH], b[GK_OPTIM_EACH], x[GK_OPTIM_EACH], y[GK_OPTIM_EACH], am = GK_R(0.0), av = GK_R(0.0), tm = GK_R(0.0),
                tv = GK_R(0.0);
            GK_UNROLL for (int k = 0; k < GK_OPTIM_EACH; k++) a[k] = b[k] = x[k] = y[k] = GK_R(0.0);
            if (codes && count > 0) {
                am = scales[os + block] * GK_R(0.00787401574803149606);
                av = scales[os + blocks + block] * GK_R(0.00392156862745098039);
            }
            gk_packed_read(p, i, count, whole, codes, master, a, b, x, y);
            GK_UNROLL for (int k = 0; k < GK_OPTIM_EACH; k++) {
                if (codes) { x[k] *= am; y[k] *= av; y[k] *= y[k]; }
                gk_f grad = b[k] * unscale;
                if (decoupled) a[k] *= GK_R(1.0) - h.lr * h.p3; else grad += h.p3 * a[k];
                a[k] = gk_rule_adam_core(a[k], grad, &x[k], &y[k], h);
                if (codes && k < count) {
                    y[k] = gk_sqrt(y[k]);
                    tm = gk_max(tm, gk_fabs(x[k]));
                    tv = gk_max(tv, y[k]);
                }
            }
            /* Outside of any condition: PoCL loses values that cross a conditional barrier here. */
            tm = gk_group_max(tm, tmp, 32);
            tv = gk_group_max(tv, tmp, 32);
            if (codes && count > 0 && gk_lid() % 32 == 0) { scales[os + block] = tm; scales[os + blocks + block] = tv; }
            gk_u32 cm[GK_OPTIM_EACH], cv[GK_OPTIM_EACH], words[GK_OPTIM_EACH];
            GK_UNROLL for (int k = 0; k < GK_OPTIM_EACH; k++) words[k] = 0u;
            if (random && count > 0) {
                gk_u64 sequence = (gk_u64)args.stream + (gk_u64)(args.first_tensor + at);
                gk_words r = gk_philox(start + (gk_u64)(i / 4), sequence, (gk_u64)args.seed), q = gk_philox(start + (gk_u64)(i / 4) + 1ul, sequence,
                    (gk_u64)args.seed);
                GK_UNROLL for (int k = 0; k < 4; k++) { words[k] = r.w[k]; words[k + 4] = q.w[k]; }
            }
            gk_packed_encode(cm, cv, x, y, words, tm, tv, codes, random);
            gk_packed_write(p, i, count, whole, codes, master, a, cm, cv);
            if (copy_kind) {
                GK_UNROLL for (int k = 0; k < GK_OPTIM_EACH; k++)
                    if (k < count) copy[oc + i + k] = copy_kind == 1 ? gk_f32_to_f16(a[k]) : gk_f32_to_bf16(a[k]);
            }
        }
    }
}
