/* Discrete Fourier transforms y_k = scale sum_j x_j exp(-2 pi i j k / n), or with the other sign. Complex numbers are pairs.
 *
 *   fourier_powers        sequences that fit local memory, by the factors of their length, which are powers of 2 up to 16
 *   fourier_factors       the same with factors 3, 5, 7, 11, 13 besides, other operands, and results that are added
 *   fourier_chirp_load    x_j w_j and zeros up to m, for lengths with a large prime factor: w_j = exp(-pi i j^2 / n) makes the transform a
 *   fourier_chirp         convolution of length m (L. Bluestein, 1970); the filter conj(w) of it,
 *   fourier_chirp_product its product with the transform of x w,
 *   fourier_chirp_store   and y_k = w_k times the convolution
 *
 * A factor r of n is a pass (Stockham's order, which needs no reversal of digits): a thread takes r elements n/r apart into registers, times their roots,
 * transforms them and puts them back; the first pass reads from global memory and the last one writes there. Passes between them exchange through local
 * memory. A longer sequence, n = n1 n2, takes two launches: sequences of n1, n2 apart, times exp(-2 pi i a k / n), then of n2 neighbours.
 * The other sign is the same transform with real and imaginary parts exchanged before and after.
 * Modes of reading and writing: 0 n pairs, 1 n real numbers, 2 n/2 + 1 pairs, of which the rest are the conjugates; 3 those of mode 2 for 2n real numbers
 * that the other side has as n pairs: with Z the transform of the pairs, E = (Z_k + Z*_(n-k)) / 2 and O = (Z_k - Z*_(n-k)) / 2i are those of the even and
 * the odd numbers, and bin k is E + O exp(-pi i k / n). Arithmetic in gk_f.
 * Deterministic. References: torch.fft; C. Van Loan, "Computational Frameworks for the Fast Fourier Transform", 1992.
 */
typedef struct { gk_f re, im; } gk_complex;

GK_FN gk_complex gk_complex_of(gk_f re, gk_f im)
{
    gk_complex r;
    r.re = re;
    r.im = im;
    return r;
}

GK_FN gk_complex gk_complex_mul(gk_complex a, gk_complex b) { return gk_complex_of(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re); }
GK_FN gk_complex gk_complex_add(gk_complex a, gk_complex b) { return gk_complex_of(a.re + b.re, a.im + b.im); }
GK_FN gk_complex gk_complex_sub(gk_complex a, gk_complex b) { return gk_complex_of(a.re - b.re, a.im - b.im); }
/* -i a */
GK_FN gk_complex gk_complex_turn(gk_complex a) { return gk_complex_of(a.im, -a.re); }
GK_FN gk_complex gk_complex_swap(gk_complex a) { return gk_complex_of(a.im, a.re); }

/* Number k of a table. */
GK_FN gk_complex gk_complex_at(GK_GLOBAL const gk_f* table, gk_i64 k) { return gk_complex_of(table[2 * k], table[2 * k + 1]); }

/* Pair i. aligned: the base is a multiple of 8 bytes. */
GK_FN gk_complex gk_pair(GK_GLOBAL const gk_t* x, gk_i64 i, int aligned)
{
#if GK_DTYPE == GK_F32
    if (aligned) {
        gk_u64 bits = ((GK_GLOBAL const gk_u64*)x)[i];
        return gk_complex_of(gk_as_f32((gk_u32)bits), gk_as_f32((gk_u32)(bits >> 32)));
    }
#endif
    return gk_complex_of(gk_load(x, 2 * i), gk_load(x, 2 * i + 1));
}

GK_FN void gk_pair_put(GK_GLOBAL gk_t* y, gk_i64 i, gk_complex v, int aligned)
{
#if GK_DTYPE == GK_F32
    if (aligned) {
        ((GK_GLOBAL gk_u64*)y)[i] = (gk_u64)gk_as_u32(v.im) << 32 | gk_as_u32(v.re);
        return;
    }
#endif
    gk_store(y, 2 * i, v.re);
    gk_store(y, 2 * i + 1, v.im);
}

/* Quotient and rest, in 32 bits where that serves. */
GK_FN gk_i64 gk_quotient_rest(gk_i64 a, gk_i64 b, gk_i64* rest)
{
    gk_i64 q = (a | b) >> 31 ? a / b : (gk_i64)((gk_u32)a / (gk_u32)b);
    *rest = a - q * b;
    return q;
}

#if GK_DTYPE == GK_F64
#define GK_FOURIER_EACH 8
#else
#define GK_FOURIER_EACH 16
#endif
/* A factor at most, and places of a block in local memory, of which one in 17 is left free against conflicts of banks. */
#define GK_FOURIER_MOST 16
#define GK_FOURIER_PLACES (GK_FOURIER_EACH * GK_BLOCK / 16 * 17 + 32)

/* ---- transforms in registers, in natural order --------------------------------------------------------------------------- */

GK_FN void gk_dft2(gk_complex* a, gk_complex* b)
{
    gk_complex s = gk_complex_add(*a, *b);
    *b = gk_complex_sub(*a, *b);
    *a = s;
}

GK_FN void gk_dft4(gk_complex* a, gk_complex* b, gk_complex* c, gk_complex* d)
{
    gk_complex t;
    gk_dft2(a, c);
    gk_dft2(b, d);
    t = gk_complex_turn(*d);
    *d = gk_complex_sub(*c, t);
    t = gk_complex_add(*c, t);
    gk_dft2(a, b);
    *c = *b;
    *b = t;
}

#define GK_COS_16 GK_R(0.92387953251128675613)
#define GK_SIN_16 GK_R(0.38268343236508977173)
#define GK_COS_8 GK_R(0.70710678118654752440)

GK_FN void gk_dft8(gk_complex* u)
{
    gk_complex v[8];
    gk_dft4(u, u + 2, u + 4, u + 6);
    gk_dft4(u + 1, u + 3, u + 5, u + 7);
    u[3] = gk_complex_mul(u[3], gk_complex_of(GK_COS_8, -GK_COS_8));
    u[5] = gk_complex_turn(u[5]);
    u[7] = gk_complex_mul(u[7], gk_complex_of(-GK_COS_8, -GK_COS_8));
    GK_UNROLL for (int k = 0; k < 4; k++) {
        v[k] = gk_complex_add(u[2 * k], u[2 * k + 1]);
        v[k + 4] = gk_complex_sub(u[2 * k], u[2 * k + 1]);
    }
    GK_UNROLL for (int k = 0; k < 8; k++) u[k] = v[k];
}

GK_FN void gk_dft16(gk_complex* u)
{
    gk_complex v[16];
    GK_UNROLL for (int b = 0; b < 4; b++) gk_dft4(u + b, u + b + 4, u + b + 8, u + b + 12);
    /* Element 4 k + b times root k b of 16. */
    u[5] = gk_complex_mul(u[5], gk_complex_of(GK_COS_16, -GK_SIN_16));
    u[6] = gk_complex_mul(u[6], gk_complex_of(GK_COS_8, -GK_COS_8));
    u[7] = gk_complex_mul(u[7], gk_complex_of(GK_SIN_16, -GK_COS_16));
    u[9] = gk_complex_mul(u[9], gk_complex_of(GK_COS_8, -GK_COS_8));
    u[10] = gk_complex_turn(u[10]);
    u[11] = gk_complex_mul(u[11], gk_complex_of(-GK_COS_8, -GK_COS_8));
    u[13] = gk_complex_mul(u[13], gk_complex_of(GK_SIN_16, -GK_COS_16));
    u[14] = gk_complex_mul(u[14], gk_complex_of(-GK_COS_8, -GK_COS_8));
    u[15] = gk_complex_mul(u[15], gk_complex_of(-GK_COS_16, GK_SIN_16));
    GK_UNROLL for (int k = 0; k < 4; k++) gk_dft4(u + 4 * k, u + 4 * k + 1, u + 4 * k + 2, u + 4 * k + 3);
    GK_UNROLL for (int k = 0; k < 16; k++) v[k] = u[k % 4 * 4 + k / 4];
    GK_UNROLL for (int k = 0; k < 16; k++) u[k] = v[k];
}

/* An odd length r: cosines of the sums, sines of the differences of elements q and r - q. roots: exp(-2 pi i k / n), n = r parts. */
GK_FN void gk_dft_odd(gk_complex* u, GK_GLOBAL const gk_f* roots, int parts, const int r)
{
    gk_complex sums[GK_FOURIER_MOST / 2], differences[GK_FOURIER_MOST / 2], first = u[0];
    GK_UNROLL for (int q = 1; q <= r / 2; q++) {
        sums[q] = gk_complex_add(u[q], u[r - q]);
        differences[q] = gk_complex_sub(u[q], u[r - q]);
        u[0] = gk_complex_add(u[0], sums[q]);
    }
    GK_UNROLL for (int s = 1; s <= r / 2; s++) {
        gk_complex even = first, odd = gk_complex_of(GK_R(0.0), GK_R(0.0));
        GK_UNROLL for (int q = 1; q <= r / 2; q++) {
            gk_complex w = gk_complex_at(roots, q * s % r * parts);
            even = gk_complex_of(even.re + w.re * sums[q].re, even.im + w.re * sums[q].im);
            odd = gk_complex_of(odd.re - w.im * differences[q].im, odd.im + w.im * differences[q].re);
        }
        u[s] = gk_complex_add(even, odd);
        u[r - s] = gk_complex_sub(even, odd);
    }
}

/* ---- a block --------------------------------------------------------------------------------------------------------------- */

/* The arguments of fourier_powers, and the number of the block's first sequence. */
typedef struct {
    GK_GLOBAL const gk_t* x;
    GK_GLOBAL const gk_f* roots;
    GK_GLOBAL const gk_f* between;
    GK_GLOBAL gk_t* y;
    gk_i64 first;
    gk_f scale, inner;
    int from, to, swap, accumulate, aligned;
} gk_fourier;

/* A sequence of a block: where its outer sequence begins, its first element there, and its a. */
typedef struct { gk_i64 base, at, a; int there; } gk_sequence;

GK_FN gk_sequence gk_sequence_of(const gk_dims* form, gk_i64 w, gk_i64 stride, gk_i64 step)
{
    gk_sequence s;
    gk_i64 i, b, outer = gk_quotient_rest(w, form->v[2], &i);
    s.a = gk_quotient_rest(i, form->v[3], &b);
    s.base = outer * stride;
    s.at = s.a * step + b;
    s.there = w < form->v[1];
    return s;
}

/* Element g of the outer sequence of n elements at `base`, before gk_fourier_bin: no load shall wait for what becomes of another. */
GK_FN gk_complex gk_fourier_raw(const gk_fourier* f, gk_i64 base, gk_i64 g, gk_i64 n)
{
    if (f->from == 1) return gk_complex_of(gk_load(f->x, base + g), GK_R(0.0));
    return gk_pair(f->x, base + (f->from == 2 && 2 * g > n ? n - g : g), f->aligned & 1);
}

/* Bin g of n: the conjugate of bin n - g in the second half; those that stand for two times `inner`. */
GK_FN gk_complex gk_fourier_bin(gk_complex v, gk_i64 g, gk_i64 n, gk_f inner)
{
    int single = g == 0 || 2 * g == n;
    v = gk_complex_of(single ? v.re : v.re * inner, single ? GK_R(0.0) : v.im * inner);
    return gk_complex_of(v.re, 2 * g > n ? -v.im : v.im);
}

GK_FN void gk_fourier_write(const gk_fourier* f, gk_i64 base, gk_i64 g, gk_i64 n, gk_complex v)
{
    if (f->swap) v = gk_complex_swap(v);
    v = gk_complex_of(v.re * f->scale, v.im * f->scale);
    if (f->to == 1) {
        gk_store(f->y, base + g, f->accumulate ? gk_load(f->y, base + g) + v.re : v.re);
    } else if (f->to == 0 || 2 * g <= n) {
        if (f->to == 2 && g != 0 && 2 * g != n) v = gk_complex_of(v.re * f->inner, v.im * f->inner);
        if (f->accumulate) v = gk_complex_add(v, gk_pair(f->y, base + g, f->aligned & 2));
        gk_pair_put(f->y, base + g, v, f->aligned & 2);
    }
}

/* w[q] = root^q for 3 <= q < r from its powers 1, 2, 4, 8. */
GK_FN void gk_powers(gk_complex* w, const int r)
{
    GK_UNROLL for (int q = 3; q < r; q++) {
        const int top = q >= 8 ? 8 : q >= 4 ? 4 : 2;
        if (q != top) w[q] = gk_complex_mul(w[top], w[q - top]);
    }
}

/* What threads do in a pass: group m of a thread is the `r` elements from i on, n/r apart, of sequence t of the block. */
typedef struct { int r, p, parts, step, per, apart, rows; } gk_pass;
typedef struct { int t, i, k, there; } gk_part;

GK_FN gk_part gk_part_of(const gk_pass* a, int m)
{
    gk_part g;
    int e = gk_lid() + m * GK_BLOCK;
    g.t = a->rows ? e / a->parts : e % a->per;
    g.i = a->rows ? e - g.t * a->parts : e / a->per;
    g.k = g.i % a->p;
    g.there = e < a->parts * a->per;
    return g;
}

/* Element j of a sequence in local memory. */
#define GK_FOURIER_AT(t, j) ((t) * a->apart + (j) + ((j) >> 4))

/* Goes through a thread's elements, one group after the other: element q of group g, number i. `next` runs where a group begins. */
#define GK_FOURIER_EACH_SLOT(next, step)                                                           \
    {                                                                                              \
        int q = 0, m = 0;                                                                          \
        gk_part g = gk_part_of(a, 0);                                                              \
        next                                                                                       \
        GK_UNROLL for (int i = 0; i < slots; i++) {                                                \
            step                                                                                   \
            q++;                                                                                   \
            if (q == a->r) {                                                                       \
                q = 0;                                                                             \
                m++;                                                                               \
                g = gk_part_of(a, m);                                                              \
                next                                                                               \
            }                                                                                      \
        }                                                                                          \
    }

/* The elements of a thread's groups: of global memory in the first pass. */
GK_FN void gk_fourier_take(const gk_fourier* f, const gk_dims* form, const gk_dims* lengths, GK_LOCAL_PTR const gk_complex* tmp, const gk_pass* a,
                           gk_complex* u, const int slots)
{
    gk_sequence s;
    GK_UNROLL for (int i = 0; i < slots; i++) u[i] = gk_complex_of(GK_R(0.0), GK_R(0.0));
    if (a->p > 1) {
        GK_FOURIER_EACH_SLOT(;, { if (g.there) u[i] = tmp[GK_FOURIER_AT(g.t, g.i + q * a->parts)]; })
        return;
    }
    GK_FOURIER_EACH_SLOT(s = gk_sequence_of(form, f->first + g.t, lengths->v[0], form->v[4]);, {
        gk_i64 j = s.at + (g.i + q * a->parts) * form->v[5];
        if (g.there && s.there) u[i] = gk_fourier_raw(f, s.base, j, lengths->v[2]);
    })
    if (f->from == 2) {
        GK_FOURIER_EACH_SLOT(s = gk_sequence_of(form, f->first + g.t, lengths->v[0], form->v[4]);,
                             { u[i] = gk_fourier_bin(u[i], s.at + (g.i + q * a->parts) * form->v[5], lengths->v[2], f->inner); })
    }
    GK_UNROLL for (int i = 0; i < slots; i++) u[i] = f->swap ? gk_complex_swap(u[i]) : u[i];
}

/* Puts them back in the order of the next pass; the last one writes them, between two launches times exp(-2 pi i a k / n). */
GK_FN void gk_fourier_give(const gk_fourier* f, const gk_dims* form, const gk_dims* lengths, GK_LOCAL_PTR gk_complex* tmp, const gk_pass* a,
                           const gk_complex* u, const int slots)
{
    gk_sequence s;
    int low = (int)lengths->v[3];
    if (a->step > 1) {
        GK_FOURIER_EACH_SLOT(;, { if (g.there) tmp[GK_FOURIER_AT(g.t, (g.i - g.k) * a->r + g.k + q * a->p)] = u[i]; })
        return;
    }
    GK_FOURIER_EACH_SLOT(s = gk_sequence_of(form, f->first + g.t, lengths->v[1], form->v[6]);, {
        int j = (g.i - g.k) * a->r + g.k + q * a->p;
        gk_complex v = u[i];
        if (f->between) {
            int e = (int)s.a * j;
            v = gk_complex_mul(v, gk_complex_mul(gk_complex_at(f->between, e & ((1 << low) - 1)), gk_complex_at(f->between, (1 << low) + (e >> low))));
        }
        if (g.there && s.there) gk_fourier_write(f, s.base, s.at + j * form->v[7], lengths->v[2], v);
    })
}

/* gk_fourier_groups2 ..: element q of each group times root q k of p r, then the groups' transforms. The roots 1, 2, 4, 8 are read, the others are
 * products of those. A function for each factor, not one with a branch for each: compilers that take it apart for every work-item would keep them all. */
#define GK_FOURIER_GROUPS(r, transform)                                                            \
    GK_FN void GK_CAT(gk_fourier_groups, r)(GK_GLOBAL const gk_f* roots, const gk_pass* a, gk_complex* u)  \
    {                                                                                              \
        GK_UNROLL for (int m = 0; m < (GK_FOURIER_EACH > r ? GK_FOURIER_EACH / r : 1); m++) {      \
            gk_complex w[GK_FOURIER_MOST];                                                         \
            gk_complex* v = u + m * r;                                                             \
            int at = gk_part_of(a, m).k * a->step;                                                 \
            GK_UNROLL for (int q = 1; q < r; q++) {                                                \
                const int top = q >= 8 ? 8 : q >= 4 ? 4 : q >= 2 ? 2 : 1;                          \
                w[q] = q == top ? gk_complex_at(roots, q * at) : gk_complex_mul(w[top], w[q - top]);  \
                v[q] = gk_complex_mul(v[q], w[q]);                                                 \
            }                                                                                      \
            transform;                                                                             \
        }                                                                                          \
    }
GK_FOURIER_GROUPS(2, gk_dft2(v, v + 1))
GK_FOURIER_GROUPS(3, gk_dft_odd(v, roots, a->parts, 3))
GK_FOURIER_GROUPS(4, gk_dft4(v, v + 1, v + 2, v + 3))
GK_FOURIER_GROUPS(5, gk_dft_odd(v, roots, a->parts, 5))
GK_FOURIER_GROUPS(7, gk_dft_odd(v, roots, a->parts, 7))
GK_FOURIER_GROUPS(8, gk_dft8(v))
GK_FOURIER_GROUPS(11, gk_dft_odd(v, roots, a->parts, 11))
GK_FOURIER_GROUPS(13, gk_dft_odd(v, roots, a->parts, 13))
#if GK_FOURIER_EACH == 16
GK_FOURIER_GROUPS(16, gk_dft16(v))
#endif

/* How the threads do the pass of factor r after passes whose factors make p: neighbouring ones have neighbouring elements of what it reads or writes. */
GK_FN gk_pass gk_pass_of(const gk_dims* form, const gk_dims* lengths, int p, int r)
{
    gk_pass a;
    int n = (int)form->v[0];
    a.r = r;
    a.p = p;
    a.parts = n / r;
    a.step = a.parts / p;
    a.per = (int)lengths->v[4];
    a.apart = (n + n / 16) | 1;
    a.rows = form->v[p == 1 ? 5 : 7] == 1;
    return a;
}

GK_FN void gk_fourier_any(const gk_fourier* f, const gk_dims* form, const gk_dims* lengths, GK_LOCAL_PTR gk_complex* tmp, int p, int r)
{
    const int slots = GK_FOURIER_EACH < 13 ? 13 : GK_FOURIER_EACH;
    gk_complex u[GK_FOURIER_MOST];
    gk_pass a = gk_pass_of(form, lengths, p, r);
    gk_fourier_take(f, form, lengths, tmp, &a, u, slots);
    switch (r) {
    case 2: gk_fourier_groups2(f->roots, &a, u); break;
    case 3: gk_fourier_groups3(f->roots, &a, u); break;
    case 4: gk_fourier_groups4(f->roots, &a, u); break;
    case 5: gk_fourier_groups5(f->roots, &a, u); break;
    case 7: gk_fourier_groups7(f->roots, &a, u); break;
    case 8: gk_fourier_groups8(f->roots, &a, u); break;
    case 11: gk_fourier_groups11(f->roots, &a, u); break;
    case 13: gk_fourier_groups13(f->roots, &a, u); break;
#if GK_FOURIER_EACH == 16
    case 16: gk_fourier_groups16(f->roots, &a, u); break;
#endif
    default: break;
    }
    GK_BARRIER();
    gk_fourier_give(f, form, lengths, tmp, &a, u, slots);
    GK_BARRIER();
}

/* ---- powers of 2 ----------------------------------------------------------------------------------------------------------- */

/* Elements i, i + n/r, .. of a sequence of pairs at `at`, `by` apart; of mode 3 those of which the 2n numbers' bins at `at` are made. */
GK_FN void gk_powers_read(const gk_fourier* f, gk_i64 at, gk_i64 by, int i, int n, gk_complex* u, const int r)
{
    gk_complex v[GK_FOURIER_MOST];
    int parts = n / r;
    if (f->from == 0) {
        GK_UNROLL for (int q = 0; q < r; q++) u[q] = gk_pair(f->x, at + q * by, 1);
        return;
    }
    GK_UNROLL for (int q = 0; q < r; q++) {
        u[q] = gk_pair(f->x, at + q * parts, 1);
        v[q] = gk_pair(f->x, at + n - 2 * i - q * parts, 1);
    }
    GK_UNROLL for (int q = 0; q < r; q++) {
        int k = i + q * parts;
        gk_f by_inner = k == 0 ? GK_R(1.0) : f->inner;
        gk_complex w = gk_complex_at(f->between, k), sum, difference;
        if (k == 0) { u[q].im = GK_R(0.0); v[q].im = GK_R(0.0); }
        sum = gk_complex_of(u[q].re + v[q].re, u[q].im - v[q].im);
        difference = gk_complex_mul(gk_complex_of(w.re, -w.im), gk_complex_of(u[q].re - v[q].re, u[q].im + v[q].im));
        u[q] = gk_complex_of((sum.re - difference.im) * by_inner, (sum.im + difference.re) * by_inner);
    }
}

/* Bins k and n - k of 2n real numbers, from the transform of their pairs in local memory. */
GK_FN void gk_powers_bins(const gk_fourier* f, const gk_dims* form, const gk_dims* lengths, GK_LOCAL_PTR const gk_complex* tmp, const gk_pass* a)
{
    int n = (int)form->v[0], each = n / 2 + 1;
    for (int e = gk_lid(); e < a->per * each; e += GK_BLOCK) {
        int t = e / each, k = e - t * each, other = k == 0 ? 0 : n - k;
        gk_complex x = tmp[GK_FOURIER_AT(t, k)], z = tmp[GK_FOURIER_AT(t, other)], w = gk_complex_at(f->between, k), even, odd;
        gk_f factor = GK_R(0.5) * f->scale * (k == 0 ? GK_R(1.0) : f->inner);
        even = gk_complex_of((x.re + z.re) * factor, (x.im - z.im) * factor);
        odd = gk_complex_mul(w, gk_complex_of((x.im + z.im) * factor, (z.re - x.re) * factor));
        if (f->first + t < form->v[1]) {
            gk_i64 at = (f->first + t) * lengths->v[1];
            gk_pair_put(f->y, at + k, gk_complex_add(even, odd), 1);
            gk_pair_put(f->y, at + n - k, gk_complex_of(even.re - odd.re, odd.im - even.im), 1);
        }
    }
}

/* Elements k, k + p, .. of a sequence at `at`, `by` apart; between two launches times exp(-2 pi i a (k + q p) / n). */
GK_FN void gk_powers_write(const gk_fourier* f, gk_i64 at, gk_i64 by, int turn, int more, int low, gk_complex* u, const int r)
{
    if (low > 0) {
        GK_UNROLL for (int q = 0; q < r; q++) {
            int e = turn + q * more;
            gk_complex w = gk_complex_mul(gk_complex_at(f->between, e & ((1 << low) - 1)), gk_complex_at(f->between, (1 << low) + (e >> low)));
            u[q] = gk_complex_mul(u[q], w);
        }
    }
    GK_UNROLL for (int q = 0; q < r; q++) {
        gk_complex v = f->swap ? gk_complex_swap(u[q]) : u[q];
        gk_pair_put(f->y, at + q * by, gk_complex_of(v.re * f->scale, v.im * f->scale), 1);
    }
}

/* The elements of a thread's groups in the pass of factor r, a constant. */
GK_FN void gk_powers_take(const gk_fourier* f, const gk_dims* form, const gk_dims* lengths, GK_LOCAL_PTR const gk_complex* tmp, const gk_pass* a,
                          gk_complex* u, const int r)
{
    GK_UNROLL for (int m = 0; m < GK_FOURIER_EACH / r; m++) {
        gk_part g = gk_part_of(a, m);
        GK_UNROLL for (int q = 0; q < r; q++) u[m * r + q] = gk_complex_of(GK_R(0.0), GK_R(0.0));
        if (a->p > 1) {
            if (g.there) {
                GK_UNROLL for (int q = 0; q < r; q++) u[m * r + q] = tmp[GK_FOURIER_AT(g.t, g.i + q * a->parts)];
            }
        } else {
            gk_sequence s = gk_sequence_of(form, f->first + g.t, lengths->v[0], form->v[4]);
            gk_i64 at = s.base + s.at + g.i * form->v[5];
            if (g.there && s.there) gk_powers_read(f, at, a->parts * form->v[5], g.i, a->parts * r, u + m * r, r);
        }
    }
    if (a->p == 1 && f->swap) {
        GK_UNROLL for (int i = 0; i < GK_FOURIER_EACH; i++) u[i] = gk_complex_swap(u[i]);
    }
}

GK_FN void gk_powers_give(const gk_fourier* f, const gk_dims* form, const gk_dims* lengths, GK_LOCAL_PTR gk_complex* tmp, const gk_pass* a,
                          gk_complex* u, const int r)
{
    GK_UNROLL for (int m = 0; m < GK_FOURIER_EACH / r; m++) {
        gk_part g = gk_part_of(a, m);
        int j = (g.i - g.k) * r + g.k;
        if (a->step > 1 || f->to == 3) {
            if (g.there) {
                GK_UNROLL for (int q = 0; q < r; q++) tmp[GK_FOURIER_AT(g.t, j + q * a->p)] = u[m * r + q];
            }
        } else {
            gk_sequence s = gk_sequence_of(form, f->first + g.t, lengths->v[1], form->v[6]);
            gk_i64 at = s.base + s.at + j * form->v[7];
            int low = (int)lengths->v[3];
            if (g.there && s.there) gk_powers_write(f, at, a->p * form->v[7], (int)s.a * j, (int)s.a * a->p, low, u + m * r, r);
        }
    }
}

#define GK_POWERS_PASS(r)                                                                          \
    {                                                                                              \
        gk_powers_take(f, form, lengths, tmp, &a, u, r);                                           \
        GK_CAT(gk_fourier_groups, r)(f->roots, &a, u);                                             \
        GK_BARRIER();                                                                              \
        gk_powers_give(f, form, lengths, tmp, &a, u, r);                                           \
        GK_BARRIER();                                                                              \
    }

GK_FN void gk_powers_pass(const gk_fourier* f, const gk_dims* form, const gk_dims* lengths, GK_LOCAL_PTR gk_complex* tmp, int p, int r)
{
    gk_complex u[GK_FOURIER_MOST];
    gk_pass a = gk_pass_of(form, lengths, p, r);
    if (r == 2) GK_POWERS_PASS(2)
    if (r == 4) GK_POWERS_PASS(4)
    if (r == 8) GK_POWERS_PASS(8)
#if GK_FOURIER_EACH == 16
    if (r == 16) GK_POWERS_PASS(16)
#endif
    if (a.step == 1 && f->to == 3) {
        gk_powers_bins(f, form, lengths, tmp, &a);
        GK_BARRIER();
    }
}

/* All passes of a block's groups of sequences: `pass` is that of factor r after passes whose factors make p. */
#define GK_FOURIER_EACH_PASS(pass)                                                                 \
    for (gk_i64 group = gk_bid(0); group * lengths.v[4] < form.v[1]; group += gk_nblocks(0)) {     \
        int p = 1;                                                                                 \
        f.first = group * lengths.v[4];                                                            \
        for (gk_i64 factors = lengths.v[5]; factors > 0; factors >>= 5) {                          \
            int r = (int)(factors & 31);                                                           \
            pass;                                                                                  \
            p *= r;                                                                                \
        }                                                                                          \
    }

// Units: REALS
/* Sequences of form[0] elements, form[1] of them in all, form[2] in each outer one; number i of an outer one is (a, b) = (i / form[3], i % form[3]),
 * reads elements a form[4] + b + j form[5] and writes a form[6] + b + k form[7]. lengths = {stride of x, of y, n of the modes, l, sequences per
 * block, factors in base 32, the first lowest}. roots: exp(-2 pi i k / form[0]). between, or null: exp(-2 pi i k / n) for k below 2^l, then for the
 * multiples of 2^l; of mode 3 (l = 0) exp(-pi i k / form[0]). aligned: bit 0 that x is at a multiple of 8 bytes, bit 1 y. Launch: blocks over groups of
 * sequences. Modes 0 and 3, both operands aligned, nothing accumulated. */
GK_KERNEL(fourier_powers)(GK_IN(gk_t, x), GK_IN(gk_f, roots), GK_IN(gk_f, between), GK_OUT(gk_t, y), GK_DIMS(form), GK_DIMS(lengths), int from, int to,
                         int swap, gk_f scale, gk_f inner, int accumulate, int aligned)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_f, roots); GK_BIND_IN(gk_f, between); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_complex tmp[GK_FOURIER_PLACES];
    gk_fourier f;
    f.x = x; f.roots = roots; f.between = between; f.y = y; f.scale = scale; f.inner = inner; f.from = from; f.to = to; f.swap = swap;
    f.accumulate = accumulate; f.aligned = aligned;
    GK_FOURIER_EACH_PASS(gk_powers_pass(&f, &form, &lengths, tmp, p, r))
}

/* The same for any factors up to 13, 1 being that of sequences of one element, and modes 0 to 2; operands as they are. */
GK_KERNEL(fourier_factors)(GK_IN(gk_t, x), GK_IN(gk_f, roots), GK_IN(gk_f, between), GK_OUT(gk_t, y), GK_DIMS(form), GK_DIMS(lengths), int from, int to,
                         int swap, gk_f scale, gk_f inner, int accumulate, int aligned)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_f, roots); GK_BIND_IN(gk_f, between); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_complex tmp[GK_FOURIER_PLACES];
    gk_fourier f;
    f.x = x; f.roots = roots; f.between = between; f.y = y; f.scale = scale; f.inner = inner; f.from = from; f.to = to; f.swap = swap;
    f.accumulate = accumulate; f.aligned = aligned;
    GK_FOURIER_EACH_PASS(gk_fourier_any(&f, &form, &lengths, tmp, p, r))
}

/* a [sequences, m] = x_j w_j, 0 from n on; chirp [n] has w. size = {sequences, inner, n, m, stride of x}. Launch: grid-stride over sequences * m. */
GK_KERNEL(fourier_chirp_load)(GK_IN(gk_t, x), GK_IN(gk_f, chirp), GK_OUT(gk_t, a), GK_DIMS(size), int from, int swap, gk_f inner, int aligned)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_f, chirp); GK_BIND_OUT(gk_t, a);
    gk_fourier f;
    f.x = x; f.from = from; f.aligned = aligned;
    for (gk_i64 e = gk_gid(); e < size.v[0] * size.v[3]; e += gk_gsize()) {
        gk_i64 j, b, w = gk_quotient_rest(e, size.v[3], &j), o = gk_quotient_rest(w, size.v[1], &b);
        gk_complex v = gk_complex_of(GK_R(0.0), GK_R(0.0));
        if (j < size.v[2]) {
            v = gk_fourier_raw(&f, o * size.v[4], b + j * size.v[1], size.v[2]);
            if (from == 2) v = gk_fourier_bin(v, j, size.v[2], inner);
            v = gk_complex_mul(swap ? gk_complex_swap(v) : v, gk_complex_at(chirp, j));
        }
        gk_pair_put(a, e, v, 1);
    }
}

/* b [m]: conj(w_j) at j and m - j, else 0. Launch: grid-stride over m. */
GK_KERNEL(fourier_chirp)(GK_IN(gk_f, chirp), GK_OUT(gk_t, b), gk_i64 n, gk_i64 m)
{
    GK_BIND_IN(gk_f, chirp); GK_BIND_OUT(gk_t, b);
    for (gk_i64 e = gk_gid(); e < m; e += gk_gsize()) {
        gk_i64 j = 2 * e > m ? m - e : e;
        gk_complex v = gk_complex_of(GK_R(0.0), GK_R(0.0));
        if (j < n) v = gk_complex_of(chirp[2 * j], -chirp[2 * j + 1]);
        gk_pair_put(b, e, v, 1);
    }
}

/* a [sequences, m] times b [m]. Launch: grid-stride over sequences * m. */
GK_KERNEL(fourier_chirp_product)(GK_OUT(gk_t, a), GK_IN(gk_t, b), gk_i64 sequences, gk_i64 m)
{
    GK_BIND_OUT(gk_t, a); GK_BIND_IN(gk_t, b);
    for (gk_i64 e = gk_gid(); e < sequences * m; e += gk_gsize()) {
        gk_i64 j;
        gk_quotient_rest(e, m, &j);
        gk_pair_put(a, e, gk_complex_mul(gk_pair(a, e, 1), gk_pair(b, j, 1)), 1);
    }
}

/* y_k = scale w_k a_k for k < n (mode 2: up to n/2). size as for fourier_chirp_load, with the stride of y. Launch: grid-stride over sequences * n. */
GK_KERNEL(fourier_chirp_store)(GK_IN(gk_t, a), GK_IN(gk_f, chirp), GK_OUT(gk_t, y), GK_DIMS(size), int to, int swap, gk_f scale, gk_f inner,
                               int accumulate, int aligned)
{
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_f, chirp); GK_BIND_OUT(gk_t, y);
    gk_fourier f;
    f.y = y; f.to = to; f.swap = swap; f.scale = scale; f.inner = inner; f.accumulate = accumulate; f.aligned = aligned;
    for (gk_i64 e = gk_gid(); e < size.v[0] * size.v[2]; e += gk_gsize()) {
        gk_i64 k, b, w = gk_quotient_rest(e, size.v[2], &k), o = gk_quotient_rest(w, size.v[1], &b);
        gk_complex v = gk_complex_mul(gk_pair(a, w * size.v[3] + k, 1), gk_complex_at(chirp, k));
        gk_fourier_write(&f, o * size.v[4], b + k * size.v[1], size.v[2], v);
    }
}
