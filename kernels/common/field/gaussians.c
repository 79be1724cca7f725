/* Covariances of Gaussians in space (Kerbl et al., 2023: 3D Gaussian splatting), and the gradients.
 *
 *   y = M M^T with M = R S: R the rotation of the quaternion (w, x, y, z) / its length, S the diagonal matrix of the scales
 * rotation [n, 4], scale [n, 3], y [n, 3, 3]. With the upstream gradient G and B = R^T (G + G^T) R: dS_k = S_k B_kk, and a turn about axis i has the
 * gradient (S_j^2 - S_k^2) B_jk for i, j, k in cyclic order.
 * Launch: grid-stride over Gaussians. Arithmetic in gk_f. Deterministic: one writer per element. Reference: the formulas in PyTorch.
 */

/* A quaternion of length 1, the reciprocal of the length that it had, and its rotation, row by row. */
typedef struct { gk_f w, x, y, z, inverse, r[9]; } gk_rotation;

GK_FN gk_rotation gk_rotation_of(GK_GLOBAL const gk_t* q)
{
    gk_rotation r;
    r.w = gk_load(q, 0);
    r.x = gk_load(q, 1);
    r.y = gk_load(q, 2);
    r.z = gk_load(q, 3);
    r.inverse = GK_R(1.0) / gk_sqrt(r.w * r.w + r.x * r.x + r.y * r.y + r.z * r.z);
    r.w *= r.inverse;
    r.x *= r.inverse;
    r.y *= r.inverse;
    r.z *= r.inverse;
    r.r[0] = GK_R(1.0) - GK_R(2.0) * (r.y * r.y + r.z * r.z);
    r.r[1] = GK_R(2.0) * (r.x * r.y - r.w * r.z);
    r.r[2] = GK_R(2.0) * (r.x * r.z + r.w * r.y);
    r.r[3] = GK_R(2.0) * (r.x * r.y + r.w * r.z);
    r.r[4] = GK_R(1.0) - GK_R(2.0) * (r.x * r.x + r.z * r.z);
    r.r[5] = GK_R(2.0) * (r.y * r.z - r.w * r.x);
    r.r[6] = GK_R(2.0) * (r.x * r.z - r.w * r.y);
    r.r[7] = GK_R(2.0) * (r.y * r.z + r.w * r.x);
    r.r[8] = GK_R(1.0) - GK_R(2.0) * (r.x * r.x + r.y * r.y);
    return r;
}

// Units: FLOATS64
GK_KERNEL(gaussian_covariance)(GK_IN(gk_t, rotation), GK_IN(gk_t, scale), GK_OUT(gk_t, y), gk_i64 n)
{
    GK_BIND_IN(gk_t, rotation); GK_BIND_IN(gk_t, scale); GK_BIND_OUT(gk_t, y);
    for (gk_i64 p = gk_gid(); p < n; p += gk_gsize()) {
        gk_rotation r = gk_rotation_of(rotation + 4 * p);
        gk_f m[9];
        GK_UNROLL for (int i = 0; i < 9; i++) m[i] = r.r[i] * gk_load(scale, 3 * p + i % 3);
        GK_UNROLL for (int i = 0; i < 3; i++) {
            GK_UNROLL for (int j = 0; j < 3; j++)
                gk_store(y, 9 * p + 3 * i + j, m[3 * i] * m[3 * j] + m[3 * i + 1] * m[3 * j + 1] + m[3 * i + 2] * m[3 * j + 2]);
        }
    }
}

/* Row j of R^T A R times column k, A = G + G^T. */
GK_FN gk_f gk_turned(GK_GLOBAL const gk_t* g, const gk_f* r, int j, int k)
{
    gk_f sum = GK_R(0.0);
    GK_UNROLL for (int a = 0; a < 3; a++) {
        GK_UNROLL for (int b = 0; b < 3; b++) sum += (gk_load(g, 3 * a + b) + gk_load(g, 3 * b + a)) * r[3 * a + j] * r[3 * b + k];
    }
    return sum;
}

/* drotation and dscale may be null; add: whether the first accumulates (1), and the second (2). */
GK_KERNEL(gaussian_covariance_bwd)(GK_IN(gk_t, dy), GK_IN(gk_t, rotation), GK_IN(gk_t, scale), GK_OUT(gk_t, drotation), GK_OUT(gk_t, dscale),
                                   gk_i64 n, int add)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, rotation); GK_BIND_IN(gk_t, scale); GK_BIND_OUT(gk_t, drotation); GK_BIND_OUT(gk_t, dscale);
    for (gk_i64 p = gk_gid(); p < n; p += gk_gsize()) {
        gk_rotation r = gk_rotation_of(rotation + 4 * p);
        GK_GLOBAL const gk_t* g = dy + 9 * p;
        gk_f size[3], ds[3], t[3], d[4], twice = GK_R(2.0) * r.inverse;
        GK_UNROLL for (int k = 0; k < 3; k++) {
            size[k] = gk_load(scale, 3 * p + k);
            ds[k] = size[k] * gk_turned(g, r.r, k, k);
        }
        /* The gradient of a turn about each axis of the Gaussian, of which equal sizes have none; a turn by w changes q by q (0, w) / 2. */
        GK_UNROLL for (int i = 0; i < 3; i++) {
            int j = (i + 1) % 3, k = (i + 2) % 3;
            t[i] = (size[j] - size[k]) * (size[j] + size[k]) * gk_turned(g, r.r, j, k);
        }
        d[0] = -twice * (r.x * t[0] + r.y * t[1] + r.z * t[2]);
        d[1] = twice * (r.w * t[0] + r.y * t[2] - r.z * t[1]);
        d[2] = twice * (r.w * t[1] + r.z * t[0] - r.x * t[2]);
        d[3] = twice * (r.w * t[2] + r.x * t[1] - r.y * t[0]);
        GK_UNROLL for (int a = 0; a < 4; a++)
            if (drotation) gk_store(drotation, 4 * p + a, add & 1 ? gk_load(drotation, 4 * p + a) + d[a] : d[a]);
        GK_UNROLL for (int k = 0; k < 3; k++)
            if (dscale) gk_store(dscale, 3 * p + k, add & 2 ? gk_load(dscale, 3 * p + k) + ds[k] : ds[k]);
    }
}
