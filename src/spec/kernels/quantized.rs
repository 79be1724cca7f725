//! Kernels of `kernels/common/quantized`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::{F32, FLOATS, FLOATS64, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `quant_tile`.
    QuantTileArgs {
        a: In("gk_u8"),
        b: In("gk_u8"),
        scale_a: In("gk_u8"),
        scale_b: In("gk_u8"),
        zero: In("gk_u8"),
        y: Out("gk_t"),
        m: I64,
        n: I64,
        k: I64,
        fa: Dims,
        fb: Dims,
    }
}

kernel_args! {
    /// Arguments of `quant_int`.
    QuantIntArgs {
        a: In("gk_u8"),
        b: In("gk_u8"),
        scale_a: In("float"),
        scale_b: In("float"),
        y: Out("float"),
        m: I64,
        n: I64,
        k: I64,
    }
}

kernel_args! {
    /// Arguments of `quant_rows`.
    QuantRowsArgs {
        x: In("gk_t"),
        b: In("gk_u8"),
        scale: In("gk_u8"),
        zero: In("gk_u8"),
        y: Out("gk_t"),
        m: I32,
        n: I64,
        k: I64,
        form: Dims,
        shift: I32,
    }
}

kernel_args! {
    /// Arguments of `quantize_short`, `quantize_long`.
    QuantizeShortArgs {
        x: In("gk_t"),
        q: Out("gk_u8"),
        scale: Out("float"),
        groups: I64,
        runs: I32,
        lanes: I32,
        code: I32,
        most: Real,
    }
}

kernel_args! {
    /// Arguments of `quantize`.
    QuantizeArgs {
        x: In("gk_t"),
        largest: In("gk_t"),
        q: Out("gk_u8"),
        scale: Out("float"),
        n: I64,
        size: I64,
        scales: I64,
        code: I32,
        most: Real,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `dequantize`.
    DequantizeArgs {
        q: In("gk_u8"),
        scale: In("float"),
        y: Out("gk_t"),
        n: I64,
        size: I64,
        code: I32,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `sparse_pack`.
    SparsePackArgs {
        x: In("gk_t"),
        values: Out("gk_t"),
        index: Out("gk_u8"),
        groups: I64,
        wide: I32,
    }
}

kernel_args! {
    /// Arguments of `sparse_unpack`.
    SparseUnpackArgs {
        values: In("gk_t"),
        index: In("gk_u8"),
        y: Out("gk_t"),
        groups: I64,
        wide: I32,
    }
}

kernel_table! {
    Quantized;
    QUANT_TILE: QuantTileArgs = "quantized/product.c" "quant_tile" [(FLOATS, &[])];
    QUANT_INT: QuantIntArgs = "quantized/product.c" "quant_int" [(F32, &[])];
    QUANT_ROWS: QuantRowsArgs = "quantized/product.c" "quant_rows" [(FLOATS, &[])];
    QUANTIZE_SHORT: QuantizeShortArgs = "quantized/quantize.c" "quantize_short" [(FLOATS, &[])];
    QUANTIZE_LONG: QuantizeShortArgs = "quantized/quantize.c" "quantize_long" [(FLOATS, &[])];
    QUANTIZE: QuantizeArgs = "quantized/quantize.c" "quantize" [(FLOATS, &[])];
    DEQUANTIZE: DequantizeArgs = "quantized/quantize.c" "dequantize" [(FLOATS, &[])];
    SPARSE_PACK: SparsePackArgs = "quantized/sparse.c" "sparse_pack" [(FLOATS64, &[])];
    SPARSE_UNPACK: SparseUnpackArgs = "quantized/sparse.c" "sparse_unpack" [(FLOATS64, &[])];
}
