//! Kernels of `kernels/common/random`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::random::DISTRIBUTIONS;
use crate::spec::{FLOATS, FLOATS64, I64, INDICES, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `random_float`.
    RandomFloatArgs {
        y: Out("gk_t"),
        n: I64,
        wide: I32,
        seed: I64,
        stream: I64,
        offset: I64,
        more: In("gk_i64"),
        p: Real,
        q: Real,
    }
}

kernel_args! {
    /// Arguments of `random_bernoulli`.
    RandomBernoulliArgs {
        p: In("gk_t"),
        y: Out("gk_u8"),
        n: I64,
        seed: I64,
        stream: I64,
        offset: I64,
        more: In("gk_i64"),
        prob: F32,
    }
}

kernel_args! {
    /// Arguments of `dropout`.
    DropoutArgs {
        x: In("gk_t"),
        y: Out("gk_t"),
        mask: Out("gk_u8"),
        n: I64,
        wide: I32,
        seed: I64,
        stream: I64,
        offset: I64,
        more: In("gk_i64"),
        keep: F32,
        scale: Real,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `bias_dropout`.
    BiasDropoutArgs {
        x: In("gk_t"),
        bias: In("gk_t"),
        r: In("gk_t"),
        y: Out("gk_t"),
        mask: Out("gk_u8"),
        n: I64,
        cols: I64,
        wide: I32,
        seed: I64,
        stream: I64,
        offset: I64,
        more: In("gk_i64"),
        keep: F32,
        scale: Real,
    }
}

kernel_args! {
    /// Arguments of `dropout_masked`.
    DropoutMaskedArgs {
        x: In("gk_t"),
        mask: In("gk_u8"),
        y: Out("gk_t"),
        n: I64,
        wide: I32,
        scale: Real,
        accumulate: I32,
    }
}

kernel_args! {
    /// Arguments of `categorical_sums`.
    CategoricalSumsArgs {
        p: In("gk_t"),
        cum: Out("float"),
        rows: I64,
        len: I64,
        err: Out("int"),
        code: I32,
    }
}

kernel_args! {
    /// Arguments of `categorical_search`.
    CategoricalSearchArgs {
        p: In("gk_t"),
        cum: In("float"),
        y: Out("int"),
        wide: I32,
        rows: I64,
        len: I64,
        count: I64,
        seed: I64,
        stream: I64,
        offset: I64,
        more: In("gk_i64"),
    }
}

kernel_args! {
    /// Arguments of `categorical_gumbel`.
    CategoricalGumbelArgs {
        logits: In("gk_t"),
        y: Out("int"),
        wide: I32,
        rows: I64,
        len: I64,
        seed: I64,
        stream: I64,
        offset: I64,
        more: In("gk_i64"),
    }
}

kernel_args! {
    /// Arguments of `random_int`.
    RandomIntArgs {
        y: Out("gk_t"),
        n: I64,
        wide: I32,
        seed: I64,
        stream: I64,
        offset: I64,
        more: In("gk_i64"),
        lo: I64,
        range: U32,
    }
}

kernel_args! {
    /// Arguments of `random_keys`.
    RandomKeysArgs {
        keys: Out("gk_i64"),
        n: I64,
        seed: I64,
        stream: I64,
        offset: I64,
        more: In("gk_i64"),
    }
}

kernel_table! {
    Random;
    RANDOM_FLOAT: RandomFloatArgs = "random/random.c" "random_float" [(FLOATS64, DISTRIBUTIONS)];
    RANDOM_BERNOULLI: RandomBernoulliArgs = "random/random.c" "random_bernoulli" [(FLOATS, &[])];
    DROPOUT: DropoutArgs = "random/random.c" "dropout" [(FLOATS64, &[])];
    BIAS_DROPOUT: BiasDropoutArgs = "random/random.c" "bias_dropout" [(FLOATS64, &[])];
    DROPOUT_MASKED: DropoutMaskedArgs = "random/random.c" "dropout_masked" [(FLOATS64, &[])];
    CATEGORICAL_SUMS: CategoricalSumsArgs = "random/random.c" "categorical_sums" [(FLOATS64, &[])];
    CATEGORICAL_SEARCH: CategoricalSearchArgs = "random/random.c" "categorical_search" [(FLOATS64, &[])];
    CATEGORICAL_GUMBEL: CategoricalGumbelArgs = "random/random.c" "categorical_gumbel" [(FLOATS64, &[])];
    RANDOM_INT: RandomIntArgs = "random/random.c" "random_int" [(INDICES, &[])];
    RANDOM_KEYS: RandomKeysArgs = "random/random.c" "random_keys" [(I64, &[])];
}
