//! Kernels of `kernels/common/elementwise`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::elementwise::{ACTIVATIONS, AIRY, BINARY, BINARY_SPECIAL, CASTS, COMPARISONS, INT_BINARY, INT_DIV, INT_UNARY, PREDICATES, SPECIAL, TERNARY, UNARY};
use crate::spec::{ALL, FLOATS64, INTS, SIZES, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `binary_flat`, `binary_special_flat`.
    BinaryFlatArgs {
        a: In("gk_t"),
        b: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        wide: I32,
        p: Real,
        q: Real,
    }
}

kernel_args! {
    /// Arguments of `binary_nd`, `binary_special_nd`.
    BinaryNdArgs {
        a: In("gk_t"),
        b: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        rank: I32,
        shape: Dims,
        magic: Dims,
        sa: Dims,
        sb: Dims,
        sy: Dims,
        wide: I32,
        p: Real,
        q: Real,
    }
}

kernel_args! {
    /// Arguments of `binary_mask`.
    BinaryMaskArgs {
        a: In("gk_t"),
        b: In("gk_t"),
        y: Out("gk_u8"),
        n: I64,
        wide: I32,
        rank: I32,
        shape: Dims,
        sa: Dims,
        sb: Dims,
        sy: Dims,
        p: Real,
        q: Real,
    }
}

kernel_args! {
    /// Arguments of `binary_int_div`.
    BinaryIntDivArgs {
        a: In("gk_t"),
        b: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        wide: I32,
        rank: I32,
        shape: Dims,
        sa: Dims,
        sb: Dims,
        sy: Dims,
        err: Out("int"),
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `binary_bwd_nd`, `binary_special_bwd`.
    BinaryBwdNdArgs {
        dy: In("gk_t"),
        a: In("gk_t"),
        b: In("gk_t"),
        da: Out("gk_t"),
        db: Out("gk_t"),
    }
    args {
        shape: Dims,
        sdy: Dims,
        sa: Dims,
        sb: Dims,
        sda: Dims,
        sdb: Dims,
        n: I64,
        p: Real,
        q: Real,
        rank: I32,
        wide: I32,
        acc_a: I32,
        acc_b: I32,
    }
}

kernel_args! {
    /// Arguments of `binary_bwd_rows`.
    BinaryBwdRowsArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        v: In("gk_t"),
        dx: Out("gk_t"),
        part: Out("gk_f"),
        rows: I64,
        cols: I64,
        lanes: I32,
        wide: I32,
        row_first: I32,
        accumulate: I32,
        p: Real,
        q: Real,
    }
}

kernel_args! {
    /// Arguments of `binary_bwd_fold`.
    BinaryBwdFoldArgs {
        part: In("gk_f"),
        dv: Out("gk_t"),
        slices: I64,
        cols: I64,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `cast_nd`.
    CastNdArgs {
        x: In("gk_t"),
        y: Out("gk_d"),
        n: I64,
        wide: I32,
        rank: I32,
        shape: Dims,
        sx: Dims,
        sy: Dims,
    }
}

kernel_args! {
    /// Arguments of `where_nd`.
    WhereNdArgs {
        c: In("gk_u8"),
        a: In("gk_t"),
        b: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        wide: I32,
        rank: I32,
        shape: Dims,
        sc: Dims,
        sa: Dims,
        sb: Dims,
        sy: Dims,
    }
}

kernel_args! {
    /// Arguments of `where_bwd`.
    WhereBwdArgs {
        dy: In("gk_t"),
        c: In("gk_u8"),
        da: Out("gk_t"),
        db: Out("gk_t"),
        n: I64,
        wide: I32,
        rank: I32,
        shape: Dims,
        sdy: Dims,
        sc: Dims,
        sda: Dims,
        sdb: Dims,
        acc_a: I32,
        acc_b: I32,
    }
}

kernel_args! {
    /// Arguments of `ldexp_nd`.
    LdexpNdArgs {
        a: In("gk_t"),
        e: In("int"),
        y: Out("gk_t"),
        n: I64,
        wide: I32,
        rank: I32,
        shape: Dims,
        sa: Dims,
        se: Dims,
        sy: Dims,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `ternary_nd`.
    TernaryNdArgs {
        a: In("gk_t"),
        b: In("gk_t"),
        c: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        rank: I32,
        shape: Dims,
        sa: Dims,
        sb: Dims,
        sc: Dims,
        sy: Dims,
        wide: I32,
        p: Real,
    }
}

kernel_args! {
    /// Arguments of `ternary_bwd_nd`.
    TernaryBwdNdArgs {
        dy: In("gk_t"),
        a: In("gk_t"),
        b: In("gk_t"),
        c: In("gk_t"),
        da: Out("gk_t"),
        db: Out("gk_t"),
        dc: Out("gk_t"),
        n: I64,
        rank: I32,
        shape: Dims,
        sdy: Dims,
        sa: Dims,
        sb: Dims,
        sc: Dims,
        sda: Dims,
        sdb: Dims,
        sdc: Dims,
        accumulate: I32,
        p: Real,
    }
}

kernel_args! {
    /// Arguments of `unary_flat`, `airy_flat`, `special_flat`.
    UnaryFlatArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        wide: I32,
        p: Real,
        q: Real,
        s: Real,
    }
}

kernel_args! {
    /// Arguments of `unary_nd`, `airy_nd`, `special_nd`.
    UnaryNdArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        n: I64,
        rank: I32,
        shape: Dims,
        sx: Dims,
        sy: Dims,
        p: Real,
        q: Real,
        s: Real,
    }
}

kernel_args! {
    /// Arguments of `unary_mask`.
    UnaryMaskArgs {
        x: In("gk_t"),
        y: Out("gk_u8"),
        n: I64,
        wide: I32,
        rank: I32,
        shape: Dims,
        sx: Dims,
        sy: Dims,
        p: Real,
        q: Real,
        s: Real,
    }
}

kernel_args! {
    /// Arguments of `unary_bwd_flat`, `special_bwd_flat`.
    UnaryBwdFlatArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        dx: Out("gk_t"),
        n: I64,
        wide: I32,
        accumulate: I32,
        p: Real,
        q: Real,
        s: Real,
    }
}

kernel_args! {
    /// Arguments of `unary_bwd_nd`, `special_bwd_nd`.
    UnaryBwdNdArgs {
        dy: In("gk_t"),
        x: In("gk_t"),
        dx: Out("gk_t"),
        n: I64,
        rank: I32,
        shape: Dims,
        sdy: Dims,
        sx: Dims,
        sdx: Dims,
        accumulate: I32,
        p: Real,
        q: Real,
        s: Real,
    }
}

kernel_table! {
    Elementwise;
    BINARY_FLAT: BinaryFlatArgs = "elementwise/binary.c" "binary_flat" [(FLOATS64, BINARY), (INTS, INT_BINARY)];
    BINARY_ND: BinaryNdArgs = "elementwise/binary.c" "binary_nd" [(FLOATS64, BINARY), (INTS, INT_BINARY)];
    BINARY_MASK: BinaryMaskArgs = "elementwise/binary.c" "binary_mask" [(FLOATS64, COMPARISONS), (INTS, COMPARISONS)];
    BINARY_INT_DIV: BinaryIntDivArgs = "elementwise/binary.c" "binary_int_div" [(INTS, INT_DIV)];
    BINARY_BWD_ND: BinaryBwdNdArgs = "elementwise/binary.c" "binary_bwd_nd" [(FLOATS64, BINARY)];
    BINARY_BWD_ROWS: BinaryBwdRowsArgs = "elementwise/binary.c" "binary_bwd_rows" [(FLOATS64, BINARY)];
    BINARY_BWD_FOLD: BinaryBwdFoldArgs = "elementwise/binary.c" "binary_bwd_fold" [(FLOATS64, BINARY)];
    BINARY_SPECIAL_FLAT: BinaryFlatArgs = "elementwise/binary_special.c" "binary_special_flat" [(FLOATS64, BINARY_SPECIAL)];
    BINARY_SPECIAL_ND: BinaryNdArgs = "elementwise/binary_special.c" "binary_special_nd" [(FLOATS64, BINARY_SPECIAL)];
    BINARY_SPECIAL_BWD: BinaryBwdNdArgs = "elementwise/binary_special.c" "binary_special_bwd" [(FLOATS64, BINARY_SPECIAL)];
    CAST_ND: CastNdArgs = "elementwise/cast.c" "cast_nd" [(ALL, CASTS)];
    WHERE_ND: WhereNdArgs = "elementwise/mixed_dtype.c" "where_nd" [(SIZES, &[])];
    WHERE_BWD: WhereBwdArgs = "elementwise/mixed_dtype.c" "where_bwd" [(FLOATS64, &[])];
    LDEXP_ND: LdexpNdArgs = "elementwise/mixed_dtype.c" "ldexp_nd" [(FLOATS64, &[])];
    TERNARY_ND: TernaryNdArgs = "elementwise/ternary.c" "ternary_nd" [(FLOATS64, TERNARY)];
    TERNARY_BWD_ND: TernaryBwdNdArgs = "elementwise/ternary.c" "ternary_bwd_nd" [(FLOATS64, TERNARY)];
    UNARY_FLAT: UnaryFlatArgs = "elementwise/unary.c" "unary_flat" [(FLOATS64, UNARY), (FLOATS64, ACTIVATIONS), (INTS, INT_UNARY)];
    UNARY_ND: UnaryNdArgs = "elementwise/unary.c" "unary_nd" [(FLOATS64, UNARY), (FLOATS64, ACTIVATIONS), (INTS, INT_UNARY)];
    UNARY_MASK: UnaryMaskArgs = "elementwise/unary.c" "unary_mask" [(FLOATS64, PREDICATES)];
    UNARY_BWD_FLAT: UnaryBwdFlatArgs = "elementwise/unary.c" "unary_bwd_flat" [(FLOATS64, UNARY), (FLOATS64, ACTIVATIONS)];
    UNARY_BWD_ND: UnaryBwdNdArgs = "elementwise/unary.c" "unary_bwd_nd" [(FLOATS64, UNARY), (FLOATS64, ACTIVATIONS)];
    AIRY_FLAT: UnaryFlatArgs = "elementwise/unary_airy.c" "airy_flat" [(FLOATS64, AIRY)];
    AIRY_ND: UnaryNdArgs = "elementwise/unary_airy.c" "airy_nd" [(FLOATS64, AIRY)];
    SPECIAL_FLAT: UnaryFlatArgs = "elementwise/unary_special.c" "special_flat" [(FLOATS64, SPECIAL)];
    SPECIAL_ND: UnaryNdArgs = "elementwise/unary_special.c" "special_nd" [(FLOATS64, SPECIAL)];
    SPECIAL_BWD_FLAT: UnaryBwdFlatArgs = "elementwise/unary_special.c" "special_bwd_flat" [(FLOATS64, SPECIAL)];
    SPECIAL_BWD_ND: UnaryBwdNdArgs = "elementwise/unary_special.c" "special_bwd_nd" [(FLOATS64, SPECIAL)];
}
