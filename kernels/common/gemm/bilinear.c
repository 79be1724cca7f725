/* Gradients of sums by groups of bilinear forms, y[g, o] = sum over the rows r of group g, offsets[g] <= r < offsets[g + 1], of a[r]^T W[o] b[r]:
 *
 *   D[g] = sum over o of dy[g, o] W[o],   da[r] = D[g] b[r],   db[r] = D[g]^T a[r];   0 for rows of no group
 *
 * dy [groups, O], W [O, M, N], a [rows, M], b [rows, N] with M <= 64, N, O <= 16. size = {rows, M, N, O, groups, rows of a block}; steps = {row, column}
 * of a, b, da, db. `da` and `db` may be null; accumulate: bit 0 for da, bit 1 for db. D is never in memory: a block keeps W in registers, makes the D of
 * one group after the other in local memory, and multiplies the rows of the group by it. Sums in gk_f, in a fixed order. Deterministic.
 * Reference: F.bilinear and segment_reduce.
 */
#include "common/prelude/slot.h"

/* Rows and groups in local memory at a time. */
#define GK_BILINEAR_ROWS 64
#define GK_BILINEAR_GROUPS 64
#define GK_BILINEAR_M 64
#define GK_BILINEAR_N 16
#define GK_BILINEAR_O 16
/* Rows that a block loads at a time, one element for each thread. */
#define GK_BILINEAR_EACH_A (GK_BLOCK / GK_BILINEAR_M)
#define GK_BILINEAR_EACH_B (GK_BLOCK / GK_BILINEAR_N)
/* From row to row of D there: threads that read neighbouring rows meet no bank twice. */
#define GK_BILINEAR_STEP 20

/* What is in local memory: `have` rows from number `row` on, the gradients of groups from number `group` on, and where these end, counted from `row`. d: the
 * D of one of them. */
typedef struct {
    GK_LOCAL_PTR gk_slot* a;
    GK_LOCAL_PTR gk_slot* b;
    GK_LOCAL_PTR gk_slot* dy;
    GK_LOCAL_PTR gk_slot* d;
    GK_LOCAL_PTR int* ends;
    gk_i64 row, group;
    int have;
} gk_bilinear_part;

GK_FN gk_f gk_bilinear_at(GK_LOCAL_PTR const gk_slot* t, int i) { return gk_as_f32(((GK_LOCAL_PTR const gk_u32*)t)[i]); }

/* The last group that begins at or before a row; -1 and `groups` are none. */
GK_FN gk_i64 gk_bilinear_group(GK_GLOBAL const int* offsets, gk_i64 groups, gk_i64 row)
{
    GK_SEEK(gk_i64, group, groups + 1, offsets[v] <= row)
    return offsets[0] > row ? -1 : group;
}

/* A thread's elements of every W[o]: four neighbours of row lid / 4. */
GK_FN void gk_bilinear_weights(GK_GLOBAL const gk_t* w, const gk_dims* size, gk_f own[GK_BILINEAR_O][4])
{
    int m = gk_lid() / 4, n = gk_lid() % 4 * 4;
    GK_UNROLL for (int o = 0; o < GK_BILINEAR_O; o++) {
        GK_UNROLL for (int u = 0; u < 4; u++) {
            own[o][u] = GK_R(0.0);
            if (o < size->v[3] && m < size->v[1] && n + u < size->v[2]) own[o][u] = gk_load(w, (o * size->v[1] + m) * size->v[2] + n + u);
        }
    }
}

/* Rows and groups of a part into local memory, with 0 behind the columns that there are. Groups behind the last one have no gradient and end with the rows,
 * as one before the first, number -1, ends where that begins. */
GK_FN void gk_bilinear_load(const gk_bilinear_part* p, GK_GLOBAL const gk_t* dy, GK_GLOBAL const gk_t* a, GK_GLOBAL const gk_t* b,
                            GK_GLOBAL const int* offsets, const gk_dims* size, const gk_dims* steps)
{
    int m = gk_lid() % GK_BILINEAR_M, n = gk_lid() % GK_BILINEAR_N, i = gk_lid() / GK_BILINEAR_M, k = gk_lid() / GK_BILINEAR_N;
    int rows_a = m < size->v[1] ? p->have : 0, rows_b = n < size->v[2] ? p->have : 0;
    gk_f x[GK_BILINEAR_ROWS / GK_BILINEAR_EACH_A];
    a += (p->row + i) * steps->v[0] + m * steps->v[1];
    b += (p->row + k) * steps->v[2] + n * steps->v[3];
    GK_UNROLL for (int u = 0; u < GK_BILINEAR_ROWS / GK_BILINEAR_EACH_A; u++) {
        x[u] = GK_R(0.0);
        if (u * GK_BILINEAR_EACH_A + i < rows_a) x[u] = gk_load(a, u * GK_BILINEAR_EACH_A * steps->v[0]);
    }
    GK_UNROLL for (int u = 0; u < GK_BILINEAR_ROWS / GK_BILINEAR_EACH_A; u++) gk_slot_put(p->a, u * GK_BLOCK + gk_lid(), x[u]);
    GK_UNROLL for (int u = 0; u < GK_BILINEAR_ROWS / GK_BILINEAR_EACH_B; u++) {
        gk_i64 g = p->group + u * GK_BILINEAR_EACH_B + k;
        gk_f y = GK_R(0.0), z = GK_R(0.0);
        if (u * GK_BILINEAR_EACH_B + k < rows_b) y = gk_load(b, u * GK_BILINEAR_EACH_B * steps->v[2]);
        if (g >= 0 && g < size->v[4] && n < size->v[3]) z = gk_load(dy, g * size->v[3] + n);
        gk_slot_put(p->b, u * GK_BLOCK + gk_lid(), y);
        gk_slot_put(p->dy, u * GK_BLOCK + gk_lid(), z);
    }
    if (gk_lid() < GK_BILINEAR_GROUPS) {
        gk_i64 g = p->group + gk_lid(), end = (g < size->v[4] ? (gk_i64)offsets[g + 1] : size->v[0]) - p->row;
        p->ends[gk_lid()] = end < 0 ? 0 : end < p->have ? (int)end : p->have;
    }
}

/* D of group number g of the part, 0 where W has no row or column: there an infinite dy times the 0 in its place is none. */
GK_FN void gk_bilinear_form(const gk_bilinear_part* p, int g, gk_f own[GK_BILINEAR_O][4], const gk_dims* size)
{
    int columns = gk_lid() / 4 < size->v[1] ? (int)size->v[2] - gk_lid() % 4 * 4 : 0;
    GK_LOCAL_PTR const gk_slot* dy = p->dy + GK_SLOTS(GK_BILINEAR_O) * g;
    gk_f d[4];
    GK_UNROLL for (int u = 0; u < 4; u++) d[u] = GK_R(0.0);
    GK_UNROLL for (int o = 0; o < GK_BILINEAR_O; o += 4) {
        gk_four y = gk_slot_get4(dy, o);
        GK_UNROLL for (int k = 0; k < 4; k++)
            GK_UNROLL for (int u = 0; u < 4; u++) d[u] += y.v[k] * own[o + k][u];
    }
    GK_UNROLL for (int u = 0; u < 4; u++) d[u] = u < columns ? d[u] : GK_R(0.0);
    gk_slot_put4(p->d + GK_SLOTS(GK_BILINEAR_STEP) * (gk_lid() / 4) + GK_SLOTS(4) * (gk_lid() % 4), 0, d[0], d[1], d[2], d[3]);
}

/* da of the rows `first` .. `end` of the part, of one group or of none: a thread has one column. */
GK_FN void gk_bilinear_left(const gk_bilinear_part* p, GK_GLOBAL gk_t* da, int first, int end, int none, const gk_dims* size, const gk_dims* steps,
                            int accumulate)
{
    int m = gk_lid() % GK_BILINEAR_M, r = first + gk_lid() / GK_BILINEAR_M;
    GK_LOCAL_PTR const gk_slot* own = p->d + GK_SLOTS(GK_BILINEAR_STEP) * m;
    GK_LOCAL_PTR const gk_slot* row = p->b + GK_SLOTS(GK_BILINEAR_N) * r;
    gk_four d[GK_BILINEAR_N / 4];
    GK_UNROLL for (int n = 0; n < GK_BILINEAR_N / 4; n++) d[n] = gk_slot_get4(own, 4 * n);
    const gk_i64 step = GK_BILINEAR_EACH_A * steps->v[4];
    da += (p->row + r) * steps->v[4] + m * steps->v[5];
    end = m < size->v[1] ? end : 0;
    GK_ROLLED for (; r < end; r += GK_BILINEAR_EACH_A) {
        gk_f s = GK_R(0.0), t = GK_R(0.0);
        GK_UNROLL for (int n = 0; n < GK_BILINEAR_N / 4; n++) {
            gk_four y = gk_slot_get4(row, 4 * n);
            GK_UNROLL for (int u = 0; u < 4; u += 2) { s += d[n].v[u] * y.v[u]; t += d[n].v[u + 1] * y.v[u + 1]; }
        }
        s += t;
        s = none ? GK_R(0.0) : s;
        if (accumulate) s += gk_load(da, 0);
        gk_store(da, 0, s);
        da += step;
        row += GK_SLOTS(GK_BILINEAR_EACH_A * GK_BILINEAR_N);
    }
}

/* The sum over eight threads of their s[part % 4], for the thread `part` of them. */
GK_FN gk_f gk_bilinear_sum(const gk_f s[4], int part, GK_LOCAL_PTR gk_f* tmp)
{
#ifdef gk_shuffle_xor
    gk_f x = part & 2 ? s[2] : s[0], y = part & 2 ? s[3] : s[1];
    x += gk_shuffle_xor(part & 2 ? s[0] : s[2], 2);
    y += gk_shuffle_xor(part & 2 ? s[1] : s[3], 2);
    x = (part & 1 ? y : x) + gk_shuffle_xor(part & 1 ? x : y, 1);
    return x + gk_shuffle_xor(x, 4);
#else
    gk_f all[4];
    GK_UNROLL for (int u = 0; u < 4; u++) all[u] = gk_group_sum(s[u], tmp, 8);
    return part & 2 ? (part & 1 ? all[3] : all[2]) : (part & 1 ? all[1] : all[0]);
#endif
}

/* db of the same rows: eight threads have an eighth of the sums for four columns of one row each. */
GK_FN void gk_bilinear_right(const gk_bilinear_part* p, GK_GLOBAL gk_t* db, int first, int end, int none, const gk_dims* size, const gk_dims* steps,
                             int accumulate, GK_LOCAL_PTR gk_f* tmp)
{
    int part = gk_lid() % 8, n = gk_lid() / 8 % 4 * 4, r = first + gk_lid() / 32, last = part < 4 && n + part < size->v[2] ? end : 0;
    GK_LOCAL_PTR const gk_slot* own = p->d + GK_SLOTS(GK_BILINEAR_STEP) * part + GK_SLOTS(4) * (gk_lid() / 8 % 4);
    gk_four d[GK_BILINEAR_M / 8];
    GK_UNROLL for (int j = 0; j < GK_BILINEAR_M / 8; j++) d[j] = gk_slot_get4(own, 8 * j * GK_BILINEAR_STEP);
    const gk_i64 step = GK_BLOCK / 32 * steps->v[6];
    db += (p->row + r) * steps->v[6] + (n + part) * steps->v[7];
    do {
        int at = (r < GK_BILINEAR_ROWS ? r : 0) * GK_BILINEAR_M + part;
        gk_f s[4], sum;
        GK_UNROLL for (int u = 0; u < 4; u++) s[u] = GK_R(0.0);
        GK_UNROLL for (int j = 0; j < GK_BILINEAR_M / 8; j++) {
            gk_f x = gk_bilinear_at(p->a, at + 8 * j);
            GK_UNROLL for (int u = 0; u < 4; u++) s[u] += d[j].v[u] * x;
        }
        sum = gk_bilinear_sum(s, part, tmp);
        sum = none ? GK_R(0.0) : sum;
        if (r < last) {
            if (accumulate) sum += gk_load(db, 0);
            gk_store(db, 0, sum);
        }
        db += step;
        r += GK_BLOCK / 32;
        first += GK_BLOCK / 32;
    } while (first < end);
}

#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 2

// Units: FLOATS
/* Launch: one block per size.v[5] rows. */
GK_KERNEL(bilinear_ragged_bwd)(GK_IN(gk_t, dy), GK_IN(gk_t, w), GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(int, offsets), GK_OUT(gk_t, da), GK_OUT(gk_t, db),
                               GK_OUT(int, err), GK_DIMS(size), GK_DIMS(steps), int accumulate, int code)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_IN(int, offsets); GK_BIND_OUT(gk_t, da);
    GK_BIND_OUT(gk_t, db); GK_BIND_OUT(int, err);
    GK_LOCAL gk_slot ta[GK_SLOTS(GK_BILINEAR_ROWS * GK_BILINEAR_M)];
    GK_LOCAL gk_slot tb[GK_SLOTS(GK_BILINEAR_ROWS * GK_BILINEAR_N)];
    GK_LOCAL gk_slot ty[GK_SLOTS(GK_BILINEAR_GROUPS * GK_BILINEAR_O)];
    GK_LOCAL gk_slot td[GK_SLOTS(GK_BILINEAR_M * GK_BILINEAR_STEP)];
    GK_LOCAL int ends[GK_BILINEAR_GROUPS];
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_i64 total = size.v[0], groups = size.v[4], row = gk_bid(0) * size.v[5], end = row + size.v[5] < total ? row + size.v[5] : total;
    gk_f own[GK_BILINEAR_O][4];
    gk_bilinear_part p;
    for (gk_i64 g = gk_gid(); g <= groups; g += gk_gsize()) {
        int first = offsets[g], last = (int)total;
        if (g < groups) last = offsets[g + 1];
        if (first < 0 || last < first || last > total) gk_report(err, code);
    }
    gk_bilinear_weights(w, &size, own);
    p.a = ta; p.b = tb; p.dy = ty; p.d = td; p.ends = ends;
    p.row = row; p.group = gk_bilinear_group(offsets, groups, row);
    do {
        int r = 0, g = 0;
        p.have = end - p.row < GK_BILINEAR_ROWS ? (int)(end - p.row) : GK_BILINEAR_ROWS;
        gk_bilinear_load(&p, dy, a, b, offsets, &size, &steps);
        GK_BARRIER();
        do {
            int none, stop;
            while (g < GK_BILINEAR_GROUPS - 1 && ends[g] <= r) g++;
            stop = ends[g] > r ? ends[g] : r;
            none = p.group + g < 0 || p.group + g >= groups;
            gk_bilinear_form(&p, g, own, &size);
            GK_BARRIER();
            if (da) gk_bilinear_left(&p, da, r, stop, none, &size, &steps, accumulate & 1);
            if (db) gk_bilinear_right(&p, db, r, stop, none, &size, &steps, accumulate & 2, tmp);
            GK_BARRIER();
            r = stop;
        } while (r < p.have && g < GK_BILINEAR_GROUPS - 1);
        /* The last group may go on behind the rows in local memory. Rows left of them are of later groups, maybe far behind empty ones. */
        p.row += r;
        p.group += r < p.have ? g + 1 : g;
        if (r < p.have) {
            gk_i64 group = gk_bilinear_group(offsets, groups, p.row);
            p.group = group > p.group ? group : p.group;
        }
    } while (p.row < end);
}
