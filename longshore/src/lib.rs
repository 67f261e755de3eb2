//! longshore
