#!/usr/bin/env bash
# Builds a release from a tag: packaging/release.sh TAG [FOLDER]
#
# FOLDER (default: target/release-TAG; new or empty) gets an archive of the program, a Debian
# package, the crates, a list of all dependencies (CycloneDX) and SHA256SUMS. Nothing is published.
# Needs cargo-deb, cargo-deny and cargo-cyclonedx: cargo install --locked NAME
#
# NO_ADVISORIES=1 leaves out the check of advisories, which loads them from the network.
#
# DEB_REVISION is the revision of the Debian package, 1 by default.
set -euo pipefail

tag=${1:?usage: packaging/release.sh TAG [FOLDER]}
root=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
commit=$(git -C "$root" rev-parse --verify --quiet "refs/tags/$tag^{commit}") || {
    echo "there is no tag $tag" >&2
    exit 1
}
out=$(realpath -m "${2:-$root/target/release-$tag}")
target=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")

# From the commit, not from the work tree. In one place, so that another run builds less.
source=$target/release-source
if [ -n "$(ls -A "$out" 2> /dev/null)" ]; then
    echo "$out is not empty: name another folder, or remove it" >&2
    exit 1
fi
rm -rf "$source"
mkdir -p "$target" "$out"
git clone --quiet --shared --no-checkout "$root" "$source"
git -C "$source" checkout --quiet --detach "$commit"
cd "$source"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
if [ "$tag" != "v$version" ]; then
    echo "the tag is $tag, but Cargo.toml has the version $version: tag v$version" >&2
    exit 1
fi
export CARGO_TARGET_DIR=$target LONGSHORE_COMMIT=$commit
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct "$commit")
export SOURCE_DATE_EPOCH

checks=(licenses bans sources)
[ -n "${NO_ADVISORIES:-}" ] || checks+=(advisories)
cargo deny --locked check "${checks[@]}"

cargo build --locked --profile dist --package longshore-cli
program=$target/dist/longshore
"$program" --version | grep -q "${commit:0:8}, dist build" || {
    echo "the program reports another build: $("$program" --version)" >&2
    exit 1
}

# What cargo-deb packages beside the program: see cli/Cargo.toml.
generated=$target/dist/generated
rm -rf "$generated"
mkdir -p "$generated/man"
"$program" man "$generated/man"
"$program" completions bash > "$generated/longshore.bash"
"$program" completions zsh > "$generated/_longshore"
"$program" completions fish > "$generated/longshore.fish"
gzip -9n "$generated"/man/*

cargo deb --no-build --profile dist --package longshore-cli --strip \
    --deb-revision "${DEB_REVISION:-1}" --output "$out"

name=longshore-$version-$(uname -m)-linux
staged=$target/release-staged/$name
rm -rf "$target/release-staged"
mkdir -p "$staged"
strip -o "$staged/longshore" "$program"
cp -r LICENSE-APACHE LICENSE-MIT README.md CHANGELOG.md docs packaging/systemd \
    packaging/sysusers packaging/config.toml "$generated" "$staged"
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
    -C "$target/release-staged" -cf - "$name" | gzip -9n > "$out/$name.tar.gz"

# What is in the program: the licences and versions of its dependencies.
cargo cyclonedx --quiet --format json --spec-version 1.5 --manifest-path cli/Cargo.toml \
    --override-filename "longshore-$version"
mv "cli/longshore-$version.json" "$out/longshore-$version.cdx.json"
git clean --quiet --force -x -- '*.json'

# The crates, as cargo would publish them.
cargo package --locked --workspace --no-verify --quiet \
    --exclude longshore-examples --exclude longshore-tests --exclude xtask
mkdir "$out/crates"
cp "$target"/package/longshore*-"$version".crate "$out/crates"

cd "$out"
find . -type f ! -name SHA256SUMS -printf '%P\0' | sort -z | xargs -0 sha256sum > SHA256SUMS
cat SHA256SUMS
