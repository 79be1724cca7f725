//! Kernels of `kernels/common/fourier`.
// Written by `cargo xtask spec` from the prototypes in kernels/common; edit those.

use crate::spec::{REALS, kernel_args, kernel_table};

kernel_args! {
    /// Arguments of `fourier_powers`, `fourier_factors`.
    FourierPowersArgs {
        x: In("gk_t"),
        roots: In("gk_f"),
        between: In("gk_f"),
        y: Out("gk_t"),
        form: Dims,
        lengths: Dims,
        from: I32,
        to: I32,
        swap: I32,
        scale: Real,
        inner: Real,
        accumulate: I32,
        aligned: I32,
    }
}

kernel_args! {
    /// Arguments of `fourier_chirp_load`.
    FourierChirpLoadArgs {
        x: In("gk_t"),
        chirp: In("gk_f"),
        a: Out("gk_t"),
        size: Dims,
        from: I32,
        swap: I32,
        inner: Real,
        aligned: I32,
    }
}

kernel_args! {
    /// Arguments of `fourier_chirp`.
    FourierChirpArgs {
        chirp: In("gk_f"),
        b: Out("gk_t"),
        n: I64,
        m: I64,
    }
}

kernel_args! {
    /// Arguments of `fourier_chirp_product`.
    FourierChirpProductArgs {
        a: Out("gk_t"),
        b: In("gk_t"),
        sequences: I64,
        m: I64,
    }
}

kernel_args! {
    /// Arguments of `fourier_chirp_store`.
    FourierChirpStoreArgs {
        a: In("gk_t"),
        chirp: In("gk_f"),
        y: Out("gk_t"),
        size: Dims,
        to: I32,
        swap: I32,
        scale: Real,
        inner: Real,
        accumulate: I32,
        aligned: I32,
    }
}

kernel_table! {
    Fourier;
    FOURIER_POWERS: FourierPowersArgs = "fourier/fourier.c" "fourier_powers" [(REALS, &[])];
    FOURIER_FACTORS: FourierPowersArgs = "fourier/fourier.c" "fourier_factors" [(REALS, &[])];
    FOURIER_CHIRP_LOAD: FourierChirpLoadArgs = "fourier/fourier.c" "fourier_chirp_load" [(REALS, &[])];
    FOURIER_CHIRP: FourierChirpArgs = "fourier/fourier.c" "fourier_chirp" [(REALS, &[])];
    FOURIER_CHIRP_PRODUCT: FourierChirpProductArgs = "fourier/fourier.c" "fourier_chirp_product" [(REALS, &[])];
    FOURIER_CHIRP_STORE: FourierChirpStoreArgs = "fourier/fourier.c" "fourier_chirp_store" [(REALS, &[])];
}
