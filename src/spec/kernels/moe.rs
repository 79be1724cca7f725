//! Kernels of `kernels/common/moe`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::{FLOATS64, I32, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `moe_router`.
    MoeRouterArgs {
        logits: In("gk_t"),
        weights: Out("gk_t"),
        ids: Out("int"),
        tokens: I64,
        experts: I32,
        k: I32,
        lanes: I32,
        sigmoid: I32,
        renorm: I32,
    }
}

kernel_args! {
    /// Arguments of `moe_router_bwd`.
    MoeRouterBwdArgs {
        dweights: In("gk_t"),
        logits: In("gk_t"),
        ids: In("int"),
        dlogits: Out("gk_t"),
        err: Out("int"),
        tokens: I64,
        experts: I32,
        k: I32,
        lanes: I32,
        sigmoid: I32,
        renorm: I32,
        accumulate: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `moe_gather`.
    MoeGatherArgs {
        x: In("gk_t"),
        perm: In("int"),
        y: Out("gk_t"),
        err: Out("int"),
        rows: I64,
        d: I64,
        k: I32,
        wide: I32,
        lanes: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `moe_combine`.
    MoeCombineArgs {
        x: In("gk_t"),
        inverse: In("int"),
        perm: In("int"),
        weights: In("gk_t"),
        y: Out("gk_t"),
        tokens: I64,
        d: I64,
        k: I32,
        wide: I32,
        lanes: I32,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `moe_combine_bwd`.
    MoeCombineBwdArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        perm: In("int"),
        weights: In("gk_t"),
        dx: Out("gk_t"),
        dw: Out("gk_t"),
        err: Out("int"),
        rows: I64,
        d: I64,
        k: I32,
        wide: I32,
        lanes: I32,
        accumulate: I32,
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `moe_order`.
    MoeOrderArgs {
        ids: In("int"),
        counts: Out("int"),
        offsets: Out("int"),
        perm: Out("int"),
        inverse: Out("int"),
        n: I64,
        experts: I32,
    }
}

kernel_args! {
    /// Arguments of `moe_inverse`.
    MoeInverseArgs {
        perm: In("int"),
        inverse: Out("int"),
        err: Out("int"),
        n: I64,
        code: I32,
    }
}

kernel_table! {
    Moe;
    MOE_ROUTER: MoeRouterArgs = "moe/moe.c" "moe_router" [(FLOATS64, &[])];
    MOE_ROUTER_BWD: MoeRouterBwdArgs = "moe/moe.c" "moe_router_bwd" [(FLOATS64, &[])];
    MOE_GATHER: MoeGatherArgs = "moe/moe.c" "moe_gather" [(FLOATS64, &[])];
    MOE_COMBINE: MoeCombineArgs = "moe/moe.c" "moe_combine" [(FLOATS64, &[])];
    MOE_COMBINE_BWD: MoeCombineBwdArgs = "moe/moe.c" "moe_combine_bwd" [(FLOATS64, &[])];
    MOE_ORDER: MoeOrderArgs = "moe/order.c" "moe_order" [(I32, &[])];
    MOE_INVERSE: MoeInverseArgs = "moe/order.c" "moe_inverse" [(I32, &[])];
}
