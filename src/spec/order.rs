//! Kernels of `kernels/common/order.c`.

use super::{ALL, FLOATS64, kernels};

kernels! {
    family: Sort;
    ORDER_ROWS = "sort/sort.c" "order_rows", dtypes: ALL, ops: &[],
        args: [x: In("gk_t"), from: In("int"), y: Out("gk_t"), index: Out("int"), rows: I64, cols: I32, n: I32, keep: I32, descending: I32, wide: I32];
    ORDER_SELECT = "sort/sort.c" "order_select", dtypes: ALL, ops: &[],
        args: [x: In("gk_t"), from: In("int"), y: Out("gk_t"), index: Out("int"), cols: I64, splits: I32, count: I32, n: I32, descending: I32, wide: I32];
    ORDER_KEYS = "sort/sort.c" "order_keys", dtypes: ALL, ops: &[],
        args: [x: In("gk_t"), keys: Out("gk_key"), n: I64, descending: I32];
    ORDER_FINISH = "sort/sort.c" "order_finish", dtypes: ALL, ops: &[],
        args: [keys: In("gk_key"), positions: In("int"), x: In("gk_t"), y: Out("gk_t"), index: Out("int"), n: I64, cols: I64, keep: I64, descending: I32, wide: I32];
    ORDER_SCATTER = "sort/sort.c" "order_scatter", dtypes: FLOATS64, ops: &[],
        args: [dy: In("gk_t"), index: In("int"), dx: Out("gk_t"), err: Out("int"), n: I64, keep: I64, size: I64, inner: I64, wide: I32, accumulate: I32, code: I32];
    ORDER_SEARCH = "sort/sort.c" "order_search", dtypes: ALL, ops: &[],
        args: [sorted: In("gk_t"), values: In("gk_t"), index: Out("int"), n: I64, edges: I64, per: I64, right: I32, wide: I32];
}
