/* Discrete Fourier transforms y_k = scale sum_j x_j exp(-+2 pi i j k / n). Complex numbers are pairs.
 *
 *   fourier_local         sequences that fit local memory, by the factors of their length (Stockham's order, which needs no reversal of digits)
 *   fourier_chirp_load    x_j w_j and zeros up to m, for lengths with a large prime factor: w_j = exp(-+pi i j^2 / n) makes the transform a
 *   fourier_chirp         convolution of length m, a power of 2 (L. Bluestein, 1970); the filter conj(w) of it,
 *   fourier_chirp_product its product with the transform of x w,
 *   fourier_chirp_store   and y_k = w_k times the convolution
 *
 * A longer sequence, n = n1 n2, takes two passes of fourier_local: sequences of n1, n2 apart, times exp(-+2 pi i a k / n), then of n2 neighbours.
 * Modes of reading and writing: 0 n pairs, 1 n real numbers, 2 n/2 + 1 pairs, of which the rest are the conjugates. Arithmetic in gk_f.
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

/* exp(sign 2 pi i k / n) for 0 <= k < n, the angle taken from the nearest quarter of the circle. */
GK_FN gk_complex gk_root(gk_i64 k, gk_i64 n, int sign)
{
    gk_i64 quarter = (4 * k + n / 2) / n;
    gk_f angle = (gk_f)(4 * k - quarter * n) / (gk_f)n * GK_R(1.57079632679489661923);
    gk_f c = gk_cos(angle), s = gk_sin(angle), t = c;
    if (quarter & 1) { c = -s; s = t; }
    if (quarter & 2) { c = -c; s = -s; }
    return gk_complex_of(c, sign < 0 ? -s : s);
}

/* Element g of sequence o of length n; `inner` is the factor of bins that stand for two. */
GK_FN gk_complex gk_fourier_read(GK_GLOBAL const gk_t* x, gk_i64 o, gk_i64 length, gk_i64 g, gk_i64 n, int mode, gk_f inner)
{
    if (mode == 1) return gk_complex_of(gk_load(x, o * length + g), GK_R(0.0));
    gk_i64 k = mode == 2 && 2 * g > n ? n - g : g;
    gk_complex v = gk_complex_of(gk_load(x, 2 * (o * length + k)), gk_load(x, 2 * (o * length + k) + 1));
    if (mode == 2) {
        int single = k == 0 || 2 * k == n;
        v.re = single ? v.re : v.re * inner;
        v.im = single ? GK_R(0.0) : v.im * inner;
        if (k != g) v.im = -v.im;
    }
    return v;
}

GK_FN void gk_fourier_put(GK_GLOBAL gk_t* y, gk_i64 i, gk_f v, int accumulate) { gk_store(y, i, accumulate ? gk_load(y, i) + v : v); }

GK_FN void gk_fourier_write(GK_GLOBAL gk_t* y, gk_i64 o, gk_i64 length, gk_i64 g, gk_i64 n, gk_complex v, int mode, gk_f inner, int accumulate)
{
    gk_i64 at = o * length + g;
    if (mode == 1) {
        gk_fourier_put(y, at, v.re, accumulate);
    } else if (mode == 0 || 2 * g <= n) {
        gk_f f = mode == 2 && g != 0 && 2 * g != n ? inner : GK_R(1.0);
        gk_fourier_put(y, 2 * at, v.re * f, accumulate);
        gk_fourier_put(y, 2 * at + 1, v.im * f, accumulate);
    }
}

#if GK_DTYPE == GK_F64
#define GK_FOURIER_POINTS 1024
#else
#define GK_FOURIER_POINTS 2048
#endif

/* Butterflies of a pass: of each r elements, n/r apart, times roots of p r; then their transform of length r, a constant up to 13. `lane` and `lt`: distance
 * of neighbours in a sequence and of sequences. roots: exp(-2 pi i k / n). */
GK_FN void gk_fourier_radix(GK_LOCAL_PTR const gk_complex* src, GK_LOCAL_PTR gk_complex* dst, GK_GLOBAL const gk_f* roots, int n, int p, int sequences,
                            int lane, int lt, gk_f flip, const int r)
{
    int parts = n / r, step = n / (p * r);
    for (int e = gk_lid(); e < parts * sequences; e += GK_BLOCK) {
        int t = lt == 1 ? e % sequences : e / parts, i = lt == 1 ? e / sequences : e % parts, k = i % p;
        gk_complex u[13];
        GK_UNROLL for (int q = 0; q < r; q++) {
            u[q] = src[(i + q * parts) * lane + t * lt];
            if (q > 0 && k > 0) u[q] = gk_complex_mul(u[q], gk_complex_of(roots[2 * q * k * step], flip * roots[2 * q * k * step + 1]));
        }
        int to = ((i - k) * r + k) * lane + t * lt;
        GK_UNROLL for (int s = 0; s < r; s++) {
            gk_complex sum = u[0];
            GK_UNROLL for (int q = 1; q < r; q++) {
                int w = q * s % r * parts;
                sum = gk_complex_add(sum, gk_complex_mul(u[q], gk_complex_of(roots[2 * w], flip * roots[2 * w + 1])));
            }
            dst[to + s * p * lane] = sum;
        }
    }
}

/* The same for 4 and 2, whose roots are 1, i, -1, -i. */
GK_FN void gk_fourier_radix4(GK_LOCAL_PTR const gk_complex* src, GK_LOCAL_PTR gk_complex* dst, GK_GLOBAL const gk_f* roots, int n, int p, int sequences,
                             int lane, int lt, gk_f flip)
{
    int parts = n / 4, step = n / (p * 4);
    for (int e = gk_lid(); e < parts * sequences; e += GK_BLOCK) {
        int t = lt == 1 ? e % sequences : e / parts, i = lt == 1 ? e / sequences : e % parts, k = i % p;
        gk_complex u[4];
        GK_UNROLL for (int q = 0; q < 4; q++) {
            u[q] = src[(i + q * parts) * lane + t * lt];
            if (q > 0 && k > 0) u[q] = gk_complex_mul(u[q], gk_complex_of(roots[2 * q * k * step], flip * roots[2 * q * k * step + 1]));
        }
        gk_complex a = gk_complex_add(u[0], u[2]), b = gk_complex_sub(u[0], u[2]), c = gk_complex_add(u[1], u[3]), d = gk_complex_sub(u[1], u[3]);
        /* -i d forward, i d inverse */
        d = gk_complex_of(flip * d.im, -flip * d.re);
        int to = ((i - k) * 4 + k) * lane + t * lt;
        dst[to] = gk_complex_add(a, c);
        dst[to + p * lane] = gk_complex_add(b, d);
        dst[to + 2 * p * lane] = gk_complex_sub(a, c);
        dst[to + 3 * p * lane] = gk_complex_sub(b, d);
    }
}

GK_FN void gk_fourier_radix2(GK_LOCAL_PTR const gk_complex* src, GK_LOCAL_PTR gk_complex* dst, GK_GLOBAL const gk_f* roots, int n, int p, int sequences,
                             int lane, int lt, gk_f flip)
{
    int parts = n / 2, step = n / (p * 2);
    for (int e = gk_lid(); e < parts * sequences; e += GK_BLOCK) {
        int t = lt == 1 ? e % sequences : e / parts, i = lt == 1 ? e / sequences : e % parts, k = i % p;
        gk_complex a = src[i * lane + t * lt], b = src[(i + parts) * lane + t * lt];
        if (k > 0) b = gk_complex_mul(b, gk_complex_of(roots[2 * k * step], flip * roots[2 * k * step + 1]));
        int to = ((i - k) * 2 + k) * lane + t * lt;
        dst[to] = gk_complex_add(a, b);
        dst[to + p * lane] = gk_complex_sub(a, b);
    }
}

// Units: REALS
/* Sequences of form.v[0] elements, form.v[1] of them in all, form.v[2] in each outer one; number i of an outer one is (a, b) = (i / v[3], i % v[3]), reads
 * elements a v[4] + b + j v[5] and writes a v[6] + b + k v[7]. lengths = {stride of x, of y, n of the modes, length of the roots between two passes (0:
 * none), sequences per block, factors in base 16}. Launch: blocks over groups of sequences. */
GK_KERNEL(fourier_local)(GK_IN(gk_t, x), GK_IN(gk_f, roots), GK_OUT(gk_t, y), GK_DIMS(form), GK_DIMS(lengths), int from, int to, int sign, gk_f scale,
                         gk_f inner, int accumulate)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_f, roots); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_complex first[GK_FOURIER_POINTS];
    GK_LOCAL gk_complex second[GK_FOURIER_POINTS];
    int n = (int)form.v[0], per = (int)lengths.v[4];
    gk_i64 groups = (form.v[1] + per - 1) / per;
    int rows = form.v[5] == 1, lane = rows ? 1 : per, lt = rows ? n : 1;
    gk_f flip = sign < 0 ? GK_R(1.0) : GK_R(-1.0);
    for (gk_i64 group = gk_bid(0); group < groups; group += gk_nblocks(0)) {
        GK_LOCAL_PTR gk_complex* src = first;
        GK_LOCAL_PTR gk_complex* dst = second;
        for (int e = gk_lid(); e < n * per; e += GK_BLOCK) {
            int t = rows ? e / n : e % per, j = rows ? e % n : e / per;
            gk_i64 w = group * per + t, i = w % form.v[2], a = i / form.v[3], b = i % form.v[3];
            gk_complex v = gk_complex_of(GK_R(0.0), GK_R(0.0));
            if (w < form.v[1]) v = gk_fourier_read(x, w / form.v[2], lengths.v[0], a * form.v[4] + b + j * form.v[5], lengths.v[2], from, inner);
            src[j * lane + t * lt] = v;
        }
        GK_BARRIER();
        int p = 1;
        for (gk_i64 factors = lengths.v[5]; factors > 0; factors >>= 4) {
            int r = (int)(factors & 15);
            if (r == 4) gk_fourier_radix4(src, dst, roots, n, p, per, lane, lt, flip);
            else if (r == 2) gk_fourier_radix2(src, dst, roots, n, p, per, lane, lt, flip);
            else if (r == 3) gk_fourier_radix(src, dst, roots, n, p, per, lane, lt, flip, 3);
            else if (r == 5) gk_fourier_radix(src, dst, roots, n, p, per, lane, lt, flip, 5);
            else if (r == 7) gk_fourier_radix(src, dst, roots, n, p, per, lane, lt, flip, 7);
            else if (r == 11) gk_fourier_radix(src, dst, roots, n, p, per, lane, lt, flip, 11);
            else gk_fourier_radix(src, dst, roots, n, p, per, lane, lt, flip, 13);
            GK_BARRIER();
            GK_LOCAL_PTR gk_complex* swap = src;
            src = dst;
            dst = swap;
            p *= r;
        }
        int across = form.v[7] == 1;
        for (int e = gk_lid(); e < n * per; e += GK_BLOCK) {
            int t = across ? e / n : e % per, k = across ? e % n : e / per;
            gk_i64 w = group * per + t, i = w % form.v[2], a = i / form.v[3], b = i % form.v[3];
            if (w < form.v[1]) {
                gk_complex v = src[k * lane + t * lt];
                if (lengths.v[3] > 0) v = gk_complex_mul(v, gk_root(a * k % lengths.v[3], lengths.v[3], sign));
                v = gk_complex_of(v.re * scale, v.im * scale);
                gk_fourier_write(y, w / form.v[2], lengths.v[1], a * form.v[6] + b + k * form.v[7], lengths.v[2], v, to, inner, accumulate);
            }
        }
        GK_BARRIER();
    }
}

/* w_j of the chirp. */
GK_FN gk_complex gk_fourier_chirp_at(gk_i64 j, gk_i64 n, int sign) { return gk_root(j * j % (2 * n), 2 * n, sign); }

/* a [sequences, m] = x_j w_j, 0 from n on. size = {sequences, inner, n, m, stride of x}. Launch: grid-stride over sequences * m. */
GK_KERNEL(fourier_chirp_load)(GK_IN(gk_t, x), GK_OUT(gk_t, a), GK_DIMS(size), int from, int sign, gk_f inner)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, a);
    gk_i64 n = size.v[2], m = size.v[3];
    for (gk_i64 e = gk_gid(); e < size.v[0] * m; e += gk_gsize()) {
        gk_i64 w = e / m, j = e % m;
        gk_complex v = gk_complex_of(GK_R(0.0), GK_R(0.0));
        if (j < n) {
            v = gk_fourier_read(x, w / size.v[1], size.v[4], w % size.v[1] + j * size.v[1], n, from, inner);
            v = gk_complex_mul(v, gk_fourier_chirp_at(j, n, sign));
        }
        gk_store(a, 2 * e, v.re);
        gk_store(a, 2 * e + 1, v.im);
    }
}

/* b [m]: conj(w_j) at j and m - j, else 0. Launch: grid-stride over m. */
GK_KERNEL(fourier_chirp)(GK_OUT(gk_t, b), gk_i64 n, gk_i64 m, int sign)
{
    GK_BIND_OUT(gk_t, b);
    for (gk_i64 e = gk_gid(); e < m; e += gk_gsize()) {
        gk_i64 j = 2 * e > m ? m - e : e;
        gk_complex v = gk_complex_of(GK_R(0.0), GK_R(0.0));
        if (j < n) v = gk_fourier_chirp_at(j, n, -sign);
        gk_store(b, 2 * e, v.re);
        gk_store(b, 2 * e + 1, v.im);
    }
}

/* a [sequences, m] times b [m]. Launch: grid-stride over sequences * m. */
GK_KERNEL(fourier_chirp_product)(GK_OUT(gk_t, a), GK_IN(gk_t, b), gk_i64 sequences, gk_i64 m)
{
    GK_BIND_OUT(gk_t, a); GK_BIND_IN(gk_t, b);
    for (gk_i64 e = gk_gid(); e < sequences * m; e += gk_gsize()) {
        gk_complex u = gk_complex_of(gk_load(a, 2 * e), gk_load(a, 2 * e + 1));
        u = gk_complex_mul(u, gk_complex_of(gk_load(b, 2 * (e % m)), gk_load(b, 2 * (e % m) + 1)));
        gk_store(a, 2 * e, u.re);
        gk_store(a, 2 * e + 1, u.im);
    }
}

/* y_k = scale w_k a_k for k < n (mode 2: up to n/2). size as for fourier_chirp_load, with the stride of y. Launch: grid-stride over sequences * n. */
GK_KERNEL(fourier_chirp_store)(GK_IN(gk_t, a), GK_OUT(gk_t, y), GK_DIMS(size), int to, int sign, gk_f scale, gk_f inner, int accumulate)
{
    GK_BIND_IN(gk_t, a); GK_BIND_OUT(gk_t, y);
    gk_i64 n = size.v[2], m = size.v[3];
    for (gk_i64 e = gk_gid(); e < size.v[0] * n; e += gk_gsize()) {
        gk_i64 w = e / n, k = e % n;
        gk_complex v = gk_complex_of(gk_load(a, 2 * (w * m + k)), gk_load(a, 2 * (w * m + k) + 1));
        v = gk_complex_mul(v, gk_fourier_chirp_at(k, n, sign));
        v = gk_complex_of(v.re * scale, v.im * scale);
        gk_fourier_write(y, w / size.v[1], size.v[4], w % size.v[1] + k * size.v[1], n, v, to, inner, accumulate);
    }
}
