//! The settings of each section, from the file and the defaults.

use longshore::{Durability, FrameBudget, Limits, PublisherOptions, ResolverTiming, ServerOptions};

use super::file::{PublisherSection, ResolverSection, TimingSection};
use super::layers::Layers;
use super::raw_value::DurationText;
use super::values::{self, ReplicaMetrics, parse_durability};
use super::{PUBLISHER_PORT, PublisherConfig, RESOLVER_PORT, ResolverConfig, TimingConfig};

impl PublisherConfig {
    pub(super) fn resolve(
        layers: &Layers<'_>,
        written: PublisherSection,
        host: &str,
    ) -> PublisherConfig {
        let name = host.to_owned();
        let listen = values::local(PUBLISHER_PORT);
        let connections_max = layers.of_file(
            "publisher.connections_max",
            written.connections_max,
            values::within(1..=values::CONNECTIONS_LIMIT),
            PublisherOptions::CONNECTIONS_MAX,
        );
        PublisherConfig {
            name: layers.of_file("publisher.name", written.name, values::name, name),
            listen: layers.of_file("publisher.listen", written.listen, values::address, listen),
            listen_unix: layers.of_file(
                "publisher.listen_unix",
                written.listen_unix,
                values::socket_path,
                None,
            ),
            advertise: layers.of_file(
                "publisher.advertise",
                written.advertise,
                values::advertised,
                Vec::new(),
            ),
            tls_name: layers.of_file(
                "publisher.tls_name",
                written.tls_name,
                values::tls_name,
                None,
            ),
            paths: layers.of_file("publisher.paths", written.paths, values::paths, Vec::new()),
            defaults: layers.of_file(
                "publisher.defaults",
                written.defaults,
                values::paths,
                Vec::new(),
            ),
            durability: layers.of_file(
                "publisher.durability",
                written.durability,
                |text| parse_durability(&text),
                Durability::Fsync,
            ),
            segment_bytes: layers.of_file(
                "publisher.segment_bytes",
                written.segment_bytes,
                values::segment_bytes,
                PublisherOptions::SEGMENT_BYTES,
            ),
            cache_bytes: layers.of_file(
                "publisher.cache_bytes",
                written.cache_bytes,
                |n| usize::try_from(n).map_err(|_| format!("{n} is out of range")),
                PublisherOptions::CACHE_BYTES,
            ),
            memory_max: layers.of_file(
                "publisher.memory_max",
                written.memory_max,
                values::memory_max,
                PublisherOptions::default_memory_max(),
            ),
            value_connections_max: layers.of_file(
                "publisher.value_connections_max",
                written.value_connections_max,
                values::within(1..=values::CONNECTIONS_LIMIT),
                PublisherOptions::default_value_connections(connections_max.value),
            ),
            connections_max,
            hang_after: layers.of_file(
                "publisher.hang_after",
                written.hang_after,
                |DurationText(text)| values::hang_after(text),
                PublisherOptions::HANG_AFTER,
            ),
            clock_skew_max: layers.of_file(
                "publisher.clock_skew_max",
                written.clock_skew_max,
                |DurationText(text)| values::clock_skew_max(text),
                PublisherOptions::CLOCK_SKEW_MAX,
            ),
            metrics: layers.of_file("publisher.metrics", written.metrics, Ok, true),
            insecure: layers.of_file("publisher.insecure", written.insecure, Ok, false),
        }
    }
}

impl ResolverConfig {
    pub(super) fn resolve(
        layers: &Layers<'_>,
        written: ResolverSection,
        host: &str,
    ) -> ResolverConfig {
        let default = ServerOptions::default();
        let name = host.to_owned();
        let listen = values::local(RESOLVER_PORT);
        let connections_max = layers.of_file(
            "resolver.connections_max",
            written.connections_max,
            values::within(1..=values::CONNECTIONS_LIMIT),
            default.connections_max,
        );
        let reserved = |key, written, default| {
            layers.of_file(key, written, values::within(0..=values::CONNECTIONS_LIMIT), default)
        };
        ResolverConfig {
            writers_reserved: reserved(
                "resolver.writers_reserved",
                written.writers_reserved,
                Limits::default_writers_reserved(connections_max.value),
            ),
            tools_reserved: reserved(
                "resolver.tools_reserved",
                written.tools_reserved,
                Limits::default_tools_reserved(connections_max.value),
            ),
            name: layers.of_file("resolver.name", written.name, values::name, name),
            listen: layers.of_file("resolver.listen", written.listen, values::address, listen),
            listen_unix: layers.of_file(
                "resolver.listen_unix",
                written.listen_unix,
                values::socket_path,
                None,
            ),
            tls_name: layers.of_file("resolver.tls_name", written.tls_name, values::tls_name, None),
            connections_max,
            watches_max: layers.of_file(
                "resolver.watches_max",
                written.watches_max,
                values::within(1..=Limits::WATCHES_LIMIT_MAX),
                default.watches_max,
            ),
            paths_max: layers.of_file(
                "resolver.paths_max",
                written.paths_max,
                values::within(1..=Limits::PATHS_LIMIT_MAX),
                default.paths_max,
            ),
            received_bytes_max: layers.of_file(
                "resolver.received_bytes_max",
                written.received_bytes_max,
                values::within(FrameBudget::BYTES_MIN..=usize::MAX),
                FrameBudget::BYTES,
            ),
            metrics: layers.of_file(
                "resolver.metrics",
                written.metrics,
                values::metrics,
                ReplicaMetrics::Automatic,
            ),
            insecure: layers.of_file("resolver.insecure", written.insecure, Ok, false),
        }
    }
}

impl TimingConfig {
    pub(super) fn resolve(layers: &Layers<'_>, written: TimingSection) -> TimingConfig {
        let default = ResolverTiming::default();
        let duration = |key, written, default| {
            layers.of_file(
                key,
                written,
                |DurationText(text)| values::positive_duration(text),
                default,
            )
        };
        let ttl = |key, written, default| {
            layers.of_file(key, written, |DurationText(text)| values::ttl(text), default)
        };
        TimingConfig {
            reader_ttl: ttl("timing.reader_ttl", written.reader_ttl, default.reader_ttl),
            writer_ttl: ttl("timing.writer_ttl", written.writer_ttl, default.writer_ttl),
            handshake_timeout: duration(
                "timing.handshake_timeout",
                written.handshake_timeout,
                default.handshake_timeout,
            ),
            connect_timeout: duration(
                "timing.connect_timeout",
                written.connect_timeout,
                default.connect_timeout,
            ),
            retry_wait_min: duration(
                "timing.retry_wait_min",
                written.retry_wait_min,
                default.retry_wait_min,
            ),
            retry_wait_max: duration(
                "timing.retry_wait_max",
                written.retry_wait_max,
                default.retry_wait_max,
            ),
            request_timeout_min: duration(
                "timing.request_timeout_min",
                written.request_timeout_min,
                default.request_timeout_min,
            ),
            read_op_timeout: duration(
                "timing.read_op_timeout",
                written.read_op_timeout,
                default.read_op_timeout,
            ),
            write_op_timeout: duration(
                "timing.write_op_timeout",
                written.write_op_timeout,
                default.write_op_timeout,
            ),
            tries: layers.of_file("timing.tries", written.tries, values::tries, default.tries),
        }
    }
}
