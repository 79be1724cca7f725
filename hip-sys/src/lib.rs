//! HIP and hiprtc functions resolved at run time.
