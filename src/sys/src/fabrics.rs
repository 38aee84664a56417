//! fabrics
