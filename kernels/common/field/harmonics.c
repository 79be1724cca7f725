/* Real spherical harmonics of degree 0 to 4 at directions, mixed by coefficients, and their gradients.
 *
 *   y[p, c] = sum over k of Y_k(r[p]) * coefficients[p, c, k]
 * r [points, 3], coefficients [points, channels, count] with count = (degree + 1)^2, y [points, channels]. Y in the order of l, then m from -l to l,
 * with the phase (-1)^m; as polynomials of degree l, which are |r|^l Y(r / |r|).
 * Launch: grid-stride. Arithmetic in gk_f. Deterministic: one writer per element. Reference: closed forms; PlenOctrees (Yu et al., 2021).
 */

/* Functions of degree 4 and below. */
#define GK_FIELD_HARMONICS 25

/* What the polynomials below are multiplied by. */
GK_CONST gk_f gk_harmonic_factors[GK_FIELD_HARMONICS] = {
    GK_R(0.28209479177387814), GK_R(-0.4886025119029199), GK_R(0.4886025119029199), GK_R(-0.4886025119029199), GK_R(1.0925484305920792),
    GK_R(-1.0925484305920792), GK_R(0.31539156525252005), GK_R(-1.0925484305920792), GK_R(0.5462742152960396), GK_R(-0.5900435899266435),
    GK_R(2.890611442640554), GK_R(-0.4570457994644658), GK_R(0.3731763325901154), GK_R(-0.4570457994644658), GK_R(1.445305721320277),
    GK_R(-0.5900435899266435), GK_R(2.5033429417967046), GK_R(-1.7701307697799304), GK_R(0.9461746957575601), GK_R(-0.6690465435572892),
    GK_R(0.10578554691520431), GK_R(-0.6690465435572892), GK_R(0.47308734787878004), GK_R(-1.7701307697799304), GK_R(0.6258357354491761),
};

/* The first `count` functions; 0 for the others. */
GK_FN void gk_basis(gk_f x, gk_f y, gk_f z, int count, gk_f* b)
{
    gk_f xx = x * x, yy = y * y, zz = z * z, s = xx + yy;
    b[0] = GK_R(1.0);
    b[1] = y; b[2] = z; b[3] = x;
    b[4] = x * y; b[5] = y * z; b[6] = GK_R(2.0) * zz - s; b[7] = x * z; b[8] = xx - yy;
    b[9] = y * (GK_R(3.0) * xx - yy);
    b[10] = x * y * z;
    b[11] = y * (GK_R(4.0) * zz - s);
    b[12] = z * (GK_R(2.0) * zz - GK_R(3.0) * s);
    b[13] = x * (GK_R(4.0) * zz - s);
    b[14] = z * (xx - yy);
    b[15] = x * (xx - GK_R(3.0) * yy);
    b[16] = x * y * (xx - yy);
    b[17] = y * z * (GK_R(3.0) * xx - yy);
    b[18] = x * y * (GK_R(6.0) * zz - s);
    b[19] = y * z * (GK_R(4.0) * zz - GK_R(3.0) * s);
    b[20] = GK_R(8.0) * zz * zz - GK_R(24.0) * zz * s + GK_R(3.0) * s * s;
    b[21] = x * z * (GK_R(4.0) * zz - GK_R(3.0) * s);
    b[22] = (xx - yy) * (GK_R(6.0) * zz - s);
    b[23] = x * z * (xx - GK_R(3.0) * yy);
    b[24] = xx * (xx - GK_R(3.0) * yy) - yy * (GK_R(3.0) * xx - yy);
    GK_UNROLL for (int k = 0; k < GK_FIELD_HARMONICS; k++) b[k] = k < count ? b[k] * gk_harmonic_factors[k] : GK_R(0.0);
}

/* d = sum over k of q[k] times the gradient of the k-th polynomial. */
GK_FN void gk_slopes(gk_f x, gk_f y, gk_f z, const gk_f* q, gk_f* d)
{
    gk_f xx = x * x, yy = y * y, zz = z * z, s = xx + yy, xyz = x * y * z, a = GK_R(3.0) * (xx - yy);
    gk_f three = GK_R(3.0), four = GK_R(4.0), six = GK_R(6.0), twelve = GK_R(12.0);
    d[0] = q[3] + q[4] * y - GK_R(2.0) * q[6] * x + q[7] * z + GK_R(2.0) * q[8] * x;
    d[1] = q[1] + q[4] * x + q[5] * z - GK_R(2.0) * q[6] * y - GK_R(2.0) * q[8] * y;
    d[2] = q[2] + q[5] * y + four * q[6] * z + q[7] * x;
    d[0] += six * q[9] * x * y + q[10] * y * z - GK_R(2.0) * q[11] * x * y - six * q[12] * x * z;
    d[1] += q[9] * a + q[10] * x * z + q[11] * (four * zz - xx - three * yy) - six * q[12] * y * z;
    d[2] += q[10] * x * y + GK_R(8.0) * q[11] * y * z + three * q[12] * (GK_R(2.0) * zz - s);
    d[0] += q[13] * (four * zz - three * xx - yy) + GK_R(2.0) * q[14] * x * z + q[15] * a;
    d[1] += -GK_R(2.0) * q[13] * x * y - GK_R(2.0) * q[14] * y * z - six * q[15] * x * y;
    d[2] += GK_R(8.0) * q[13] * x * z + q[14] * (xx - yy);
    d[0] += q[16] * y * (three * xx - yy) + six * q[17] * xyz + q[18] * y * (six * zz - three * xx - yy) - six * q[19] * xyz;
    d[1] += q[16] * x * (xx - three * yy) + q[17] * z * a + q[18] * x * (six * zz - xx - three * yy);
    d[1] += q[19] * z * (four * zz - three * xx - GK_R(9.0) * yy);
    d[2] += q[17] * y * (three * xx - yy) + twelve * q[18] * xyz + q[19] * y * (twelve * zz - three * s);
    d[0] += twelve * q[20] * x * (s - four * zz) + q[21] * z * (four * zz - GK_R(9.0) * xx - three * yy) + four * q[22] * x * (three * zz - xx);
    d[1] += twelve * q[20] * y * (s - four * zz) - six * q[21] * xyz - four * q[22] * y * (three * zz - yy);
    d[2] += GK_R(16.0) * q[20] * z * (GK_R(2.0) * zz - three * s) + q[21] * x * (twelve * zz - three * s) + twelve * q[22] * z * (xx - yy);
    d[0] += q[23] * z * a + four * q[24] * x * (xx - three * yy);
    d[1] += -six * q[23] * xyz + four * q[24] * y * (yy - three * xx);
    d[2] += q[23] * x * (xx - three * yy);
}

// Units: FLOATS64
/* Items: channels of all points. */
GK_KERNEL(harmonics)(GK_IN(gk_t, r), GK_IN(gk_t, coefficients), GK_OUT(gk_t, y), gk_i64 n, gk_i64 channels, int count)
{
    GK_BIND_IN(gk_t, r); GK_BIND_IN(gk_t, coefficients); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 p = i / channels;
        gk_f b[GK_FIELD_HARMONICS], sum = GK_R(0.0);
        gk_basis(gk_load(r, 3 * p), gk_load(r, 3 * p + 1), gk_load(r, 3 * p + 2), count, b);
        GK_UNROLL for (int k = 0; k < GK_FIELD_HARMONICS; k++)
            if (k < count) sum += b[k] * gk_load(coefficients, i * count + k);
        gk_store(y, i, sum);
    }
}

/* dcoefficients[p, c, k] (+)= dy[p, c] * Y_k(r[p]). Items: channels of all points. */
GK_KERNEL(harmonics_dcoefficients)(GK_IN(gk_t, dy), GK_IN(gk_t, r), GK_OUT(gk_t, dcoefficients), gk_i64 n, gk_i64 channels, int count, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, r); GK_BIND_OUT(gk_t, dcoefficients);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 p = i / channels;
        gk_f b[GK_FIELD_HARMONICS], g = gk_load(dy, i);
        gk_basis(gk_load(r, 3 * p), gk_load(r, 3 * p + 1), gk_load(r, 3 * p + 2), count, b);
        GK_UNROLL for (int k = 0; k < GK_FIELD_HARMONICS; k++) {
            gk_i64 to = i * count + k;
            if (k < count) gk_store(dcoefficients, to, accumulate ? gk_load(dcoefficients, to) + g * b[k] : g * b[k]);
        }
    }
}

/* dr[p] (+)= sum over c and k of dy[p, c] * coefficients[p, c, k] * the gradient of Y_k. Items: points. */
GK_KERNEL(harmonics_dr)(GK_IN(gk_t, dy), GK_IN(gk_t, r), GK_IN(gk_t, coefficients), GK_OUT(gk_t, dr), gk_i64 n, gk_i64 channels, int count,
                        int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, r); GK_BIND_IN(gk_t, coefficients); GK_BIND_OUT(gk_t, dr);
    for (gk_i64 p = gk_gid(); p < n; p += gk_gsize()) {
        gk_f q[GK_FIELD_HARMONICS], d[3];
        GK_UNROLL for (int k = 0; k < GK_FIELD_HARMONICS; k++) q[k] = GK_R(0.0);
        for (gk_i64 c = 0; c < channels; c++) {
            gk_f g = gk_load(dy, p * channels + c);
            GK_UNROLL for (int k = 0; k < GK_FIELD_HARMONICS; k++)
                if (k < count) q[k] += g * gk_load(coefficients, (p * channels + c) * count + k);
        }
        GK_UNROLL for (int k = 0; k < GK_FIELD_HARMONICS; k++) q[k] = q[k] * gk_harmonic_factors[k];
        gk_slopes(gk_load(r, 3 * p), gk_load(r, 3 * p + 1), gk_load(r, 3 * p + 2), q, d);
        GK_UNROLL for (int a = 0; a < 3; a++) gk_store(dr, 3 * p + a, accumulate ? gk_load(dr, 3 * p + a) + d[a] : d[a]);
    }
}
