/* Non-maximum suppression in three steps: order of the scores, overlaps as bits, one pass in order. Integers and comparisons beside the
 * overlap, which is computed in gk_f. Deterministic. Reference: torchvision.ops.nms.
 */
#if GK_DTYPE == GK_F64
typedef gk_u64 gk_key;
#else
typedef gk_u32 gk_key;
#endif

// Units: FLOATS64
/* Unsigned keys whose ascending order is the descending one of the scores; NaN first, zeros are one value. Launch: grid-stride. */
GK_KERNEL(nms_keys)(GK_IN(gk_t, scores), GK_OUT(gk_u8, keys), gk_i64 n)
{
    GK_BIND_IN(gk_t, scores); GK_BIND_OUT(gk_u8, keys);
    GK_GLOBAL gk_key* to = (GK_GLOBAL gk_key*)keys;
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_f v = gk_load(scores, i);
        if (v == GK_R(0.0)) v = GK_R(0.0);
        if (gk_isnan(v)) v = GK_NAN;
#if GK_DTYPE == GK_F64
        gk_key u = gk_as_u64(v), sign = (gk_key)1 << 63;
#else
        gk_key u = gk_as_u32(v), sign = 0x80000000u;
#endif
        to[i] = u & sign ? u : ~(u | sign);
    }
}

/* Bit b of bits[i * words + w]: the box of rank 32w + b comes behind the one of rank i, is of its group and overlaps it by more than the
 * threshold. `order`: the boxes by rank. Launch: grid-stride over n * words. */
GK_KERNEL(nms_overlaps)(GK_IN(gk_t, boxes), GK_IN(int, groups), GK_IN(int, order), GK_OUT(gk_u32, bits), gk_i64 n, gk_i64 words, int wide_groups,
                        gk_f threshold)
{
    GK_BIND_IN(gk_t, boxes); GK_BIND_IN(int, groups); GK_BIND_IN(int, order); GK_BIND_OUT(gk_u32, bits);
    for (gk_i64 e = gk_gid(); e < n * words; e += gk_gsize()) {
        gk_i64 i = e / words, first = (e - i * words) * 32;
        gk_u32 found = 0u;
        if (first + 31 > i) {
            gk_i64 p = order[i], group = groups ? gk_index(groups, p, wide_groups) : 0;
            gk_f x1 = gk_load(boxes, 4 * p), y1 = gk_load(boxes, 4 * p + 1), x2 = gk_load(boxes, 4 * p + 2), y2 = gk_load(boxes, 4 * p + 3);
            gk_f area = (x2 - x1) * (y2 - y1);
            for (int b = 0; b < 32; b++) {
                gk_i64 j = first + b;
                if (j <= i || j >= n) continue;
                gk_i64 q = order[j];
                if (groups && gk_index(groups, q, wide_groups) != group) continue;
                gk_f u1 = gk_load(boxes, 4 * q), v1 = gk_load(boxes, 4 * q + 1), u2 = gk_load(boxes, 4 * q + 2), v2 = gk_load(boxes, 4 * q + 3);
                gk_f w = gk_min(x2, u2) - gk_max(x1, u1), h = gk_min(y2, v2) - gk_max(y1, v1);
                gk_f inter = w > GK_R(0.0) && h > GK_R(0.0) ? w * h : GK_R(0.0), whole = area + (u2 - u1) * (v2 - v1) - inter;
                /* Two boxes without area do not overlap. */
                gk_f iou = inter > GK_R(0.0) ? inter / whole : GK_R(0.0);
                if (iou > threshold) found |= 1u << b;
            }
        }
        bits[e] = found;
    }
}

/* Visits the ranks: a box that no kept one excluded is kept and excludes its overlaps. `gone`: `words` words of scratch. Launch: one block. */
GK_KERNEL(nms_pass)(GK_IN(int, order), GK_IN(gk_u32, bits), GK_OUT(gk_u32, gone), GK_OUT(gk_i64, keep), GK_OUT(gk_i64, count), gk_i64 n, gk_i64 words)
{
    GK_BIND_IN(int, order); GK_BIND_IN(gk_u32, bits); GK_BIND_OUT(gk_u32, gone); GK_BIND_OUT(gk_i64, keep); GK_BIND_OUT(gk_i64, count);
    GK_LOCAL gk_u32 own[32];
    int t = gk_lid();
    gk_i64 kept = 0;
    for (gk_i64 w = t; w < words; w += GK_BLOCK) gone[w] = 0u;
    for (gk_i64 w = 0; w < words; w++) {
        gk_i64 first = w * 32;
        if (t < 32) own[t] = first + t < n ? bits[(first + t) * words + w] : 0u;
        GK_BARRIER();
        gk_u32 out = gone[w], alive = 0u;
        for (int b = 0; b < 32; b++) {
            if (first + b < n && !(out >> b & 1u)) {
                alive |= 1u << b;
                out |= own[b];
                if (t == 0) keep[kept] = order[first + b];
                kept++;
            }
        }
        for (gk_i64 v = w + 1 + t; v < words; v += GK_BLOCK) {
            gk_u32 all = gone[v];
            for (int b = 0; b < 32; b++) {
                if (alive >> b & 1u) all |= bits[(first + b) * words + v];
            }
            gone[v] = all;
        }
        GK_BARRIER();
    }
    if (t == 0) count[0] = kept;
}
