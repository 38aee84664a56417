# The only commands people need. `make help` lists them.
SHELL := /bin/bash
# An error of a test is its chain of causes; a backtrace would bury it.
export RUST_LIB_BACKTRACE := 0
# mkfs, sfdisk and dhclient are not on an ordinary user's path, cargo not on that of a login without rustup's line.
export PATH := $(PATH):/usr/sbin:/sbin:$(HOME)/.cargo/bin
# Image, lab and tests find each other below target/. Flags from outside would replace those that the static programs and the
# firmware program need.
export CARGO_TARGET_DIR := $(CURDIR)/target
unexport RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_RUSTFLAGS CARGO_BUILD_TARGET
CARGO := cargo
LOCKED := --locked
LAB := $(CARGO) run -q $(LOCKED) -p kurrent-harness --bin kurrent-lab --

.DEFAULT_GOAL := help
.PHONY: help deps build image attest lab test check deny test-net test-vm bench-deps bench-image bench-ledger bench-dhcp bench-http bench-target bench-tftp attack fuzz clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps: ## install what build and tests need, from this machine's own package sources (quick when all is there)
	@appliance/deps/install

build: deps ## the programs that run on this machine (debug)
	$(CARGO) build -q $(LOCKED)

attest: deps ## the firmware program kurrent-attest.efi, for x86-64 and arm64
	$(CARGO) build -q $(LOCKED) --profile firmware -p kurrent-attest --target x86_64-unknown-uefi --target aarch64-unknown-uefi

image: deps ## the appliance: target/kurrent.img and target/kurrent.img.zst
	$(CARGO) run -q $(LOCKED) -p kurrent-appliance -- image

lab: image build ## appliance and worker in QEMU, from power-on to login, in one go (LAB_KEEP=1 leaves them running)
	@$(LAB) run

bench-deps: ## unpack the programs that benches compare with (below target/deps/bench, not installed)
	@appliance/deps/install --bench

bench-image: image build ## figures for the README: sizes, times, memory
	@$(LAB) bench

bench-ledger: ## figures for the README: one durable change in small and large ledgers, a start, memory
	$(CARGO) bench -q $(LOCKED) -p kurrentd --bench ledger

bench-dhcp: build bench-deps ## kurrentd, dnsmasq and Kea side by side: a boot storm, DORA through a relay
	tests/in-namespace $(CARGO) bench -q $(LOCKED) -p kurrentd --bench dhcp

bench-http: build bench-deps ## kurrentd and nginx side by side: a small file over 256 connections, a large one over 1 and 16
	tests/in-namespace $(CARGO) bench -q $(LOCKED) -p kurrentd --bench http

bench-target: ## how long a change waits for the target, with few and with many bound Workers
	$(CARGO) bench -q $(LOCKED) -p kurrentd --bench target

bench-tftp: bench-deps ## ours against the TFTP servers of Debian: figures and ratios (ROUNDS=5)
	$(CARGO) build -q $(LOCKED) --release -p kurrentd -p kurrent-harness --bin kurrentd --bin bench-tftp
	@tests/in-namespace target/release/bench-tftp

test: ## everything: check, then network tests, then machine tests; times at the end
	@tests/layers

deny: deps ## licences, sources and banned crates; known vulnerabilities when KURRENT_ADVISORY_DB names a copy of the database
	@appliance/deps/deny

check: deny ## format, lints, crates, unit, golden and property tests, tidy: about a minute
	$(CARGO) fmt --all --check
	$(CARGO) clippy -q $(LOCKED) --all-targets -- -D warnings
	$(CARGO) clippy -q $(LOCKED) --test net --test vm -- -D warnings
	$(CARGO) clippy -q $(LOCKED) --profile firmware -p kurrent-attest --target x86_64-unknown-uefi --target aarch64-unknown-uefi -- -D warnings
	$(CARGO) clippy -q $(LOCKED) -p kurrent-attest --lib --tests -- -D warnings
	$(CARGO) test $(LOCKED)
	$(CARGO) test $(LOCKED) -p kurrent-attest --lib

test-net: build ## the real daemon against independent clients in network namespaces
	tests/in-namespace $(CARGO) test $(LOCKED) --test net

test-vm: image build ## machines in QEMU: firmware to login, attacks, power cuts
	@$(LAB) master
	$(CARGO) test -q $(LOCKED) --test vm --no-run
	tests/in-namespace tests/machines

attack: image build ## each attack of the list with how it is refused, and where the operator finds it (namespaces and machines)
	@$(LAB) master
	@tests/attacks

fuzz: deps ## each decoder of strangers' octets for ten minutes (FUZZ_SECS=60: shorter)
	tests/fuzz/run

clean: ## remove everything that was built (also the downloaded packages)
	$(CARGO) clean
