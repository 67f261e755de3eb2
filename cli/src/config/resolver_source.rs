//! Which source names the resolver's replicas.

/// The sources that are set.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Sources {
    /// `--context`
    pub(super) context_flag: bool,
    /// `$LONGSHORE_RESOLVERS`
    pub(super) variable: bool,
    /// `$LONGSHORE_CONTEXT`
    pub(super) context_variable: bool,
    /// `resolvers` in a configuration file that was named by `--config` or `$LONGSHORE_CONFIG`.
    pub(super) named_file: bool,
    /// The selected context, for a command that heeds it.
    pub(super) selected: bool,
}

/// Where the replicas come from, without `--resolver`, which precedes all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ResolverSource {
    /// The context of the flag, of the variable, or the selected one.
    Context,
    /// The variable, the configuration file, or the default.
    Layers,
}

/// Decides by how close to the command a source is: its line, then its environment, then a file
/// that one of the two names, then what is stored for all commands. At each step addresses precede
/// contexts.
pub(super) fn resolver_source(sources: Sources) -> ResolverSource {
    let Sources { context_flag, variable, context_variable, named_file, selected } = sources;
    match () {
        () if context_flag => ResolverSource::Context,
        () if variable => ResolverSource::Layers,
        () if context_variable => ResolverSource::Context,
        () if named_file => ResolverSource::Layers,
        () if selected => ResolverSource::Context,
        () => ResolverSource::Layers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_source_names_the_replicas() {
        let none = Sources::default();
        let mut sources = Sources {
            context_flag: true,
            variable: true,
            context_variable: true,
            named_file: true,
            selected: true,
        };
        assert_eq!(resolver_source(none), ResolverSource::Layers);
        assert_eq!(resolver_source(sources), ResolverSource::Context, "--context");
        sources.context_flag = false;
        assert_eq!(resolver_source(sources), ResolverSource::Layers, "$LONGSHORE_RESOLVERS");
        sources.variable = false;
        assert_eq!(resolver_source(sources), ResolverSource::Context, "$LONGSHORE_CONTEXT");
        sources.context_variable = false;
        assert_eq!(resolver_source(sources), ResolverSource::Layers, "the named file");
        sources.named_file = false;
        assert_eq!(resolver_source(sources), ResolverSource::Context, "the selected context");
    }
}
