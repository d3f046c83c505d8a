# SPDX-License-Identifier: Apache-2.0
#
# The entry point for people and for CI: `make help` lists the verbs. Each verb brings the tools that it needs.
# V=1 shows the commands.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

ifeq ($(V),1)
  Q :=
  QUIET :=
  say = @:
else
  Q := @
  QUIET := --quiet
  say = @printf '  %-8s %s\n' $(1) $(2)
endif

CLANG := clang-19
LLVM_STRIP := llvm-strip-19
# Header directories that clang searches last: asm/types.h lies in the one of the architecture.
BPF_INCLUDE = -idirafter /usr/include/$(shell uname -m)-linux-gnu
BPF_OBJECTS := $(patsubst bpf/%.bpf.c,target/bpf/%.bpf.o,$(wildcard bpf/*.bpf.c))
C_SOURCES = $(shell find bpf crates/datapath/tests -name '*.[ch]')
SHELL_SCRIPTS = .ci/run .ci/nightly $(shell find deploy benches userspace -name '*.sh' 2>/dev/null)
CACHE := $(or $(WEIR_CACHE),$(HOME)/.cache/weir)
STATIC_TARGET := $(shell uname -m)-unknown-linux-musl
PREFIX := /usr/local
# What is installed.
PROGRAMS := target/release
XTASK := cargo run $(QUIET) --release -p xtask --

# What programs say of themselves: $(call manuals,DIRECTORY OF PROGRAMS)
define manuals
	$(call say,MAN,target/man)
	$(Q)rm -rf target/man target/completions
	$(Q)mkdir -p target/man target/completions
	$(Q)$(1)/weir man target/man
	$(Q)$(1)/weir-agent --man >target/man/weir-agent.8
	$(Q)for shell in bash zsh fish; do $(1)/weir completion $$shell >target/completions/weir.$$shell; done
endef

# ---- verbs ----------------------------------------------------------------------------------------------------------

.PHONY: build man static deb image install uninstall test test-slow test-kernel demo conformance conformance-report lint verify bench-packet bench-sync bench-steering bench-flood bench-killed-pod soak bench-papers bench-world sim fuzz docs manifests test-deploy clean help format bpf
.PHONY: bootstrap bootstrap-base bootstrap-test bootstrap-bench bootstrap-conformance bootstrap-deploy bootstrap-lint bootstrap-docs bootstrap-static bootstrap-package bootstrap-vm
.PHONY: lint-rust lint-c lint-shell lint-deny lint-spdx lint-size

build: bootstrap-base ## weir-agent and weir, in target/release
	$(call say,CARGO,"weir-agent weir")
	$(Q)cargo build $(QUIET) --release -p weir-agent -p weir-cli

man: build ## manual pages and completions of shells, in target/man and target/completions
	$(call manuals,$(PROGRAMS))

static: bootstrap-static ## weir-agent and weir without a C library, for any Linux, in target/*-musl/release
	$(call say,CARGO,"weir-agent weir ($(STATIC_TARGET))")
	$(Q)cargo build $(QUIET) --release --locked --target $(STATIC_TARGET) -p weir-agent -p weir-cli

deb: bootstrap-package static ## a package for Debian and Ubuntu, in target/debian
	$(call manuals,target/$(STATIC_TARGET)/release)
	$(call say,DEB,target/debian)
	$(Q)cd userspace/agent && $(CACHE)/bin/cargo-deb --quiet --no-build --target $(STATIC_TARGET) --output $(CURDIR)/target/debian

# What `docker build -f deploy/docker/Dockerfile` makes, where there is no Docker.
image: static ## the container image, in target/image/weir.tar; IMAGE=name:tag
	$(call say,IMAGE,target/image/weir.tar)
	$(Q)cargo run $(QUIET) -p weir-deploy-tests --bin weir-image -- target/image/weir.tar $(IMAGE)

# The unit says /usr/bin; a file of settings that is there stays as it is.
install: man ## both programs, unit, manual and completions below PREFIX=/usr/local, settings in /etc; DESTDIR=root
	$(call say,INSTALL,"$(DESTDIR)$(PREFIX)")
	$(Q)install -D -t $(DESTDIR)$(PREFIX)/bin $(PROGRAMS)/weir-agent $(PROGRAMS)/weir
	$(Q)ln -sf weir $(DESTDIR)$(PREFIX)/bin/kubectl-weir
	$(Q)install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man8 target/man/*.8
	$(Q)install -D -m 644 target/completions/weir.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/weir
	$(Q)install -D -m 644 target/completions/weir.zsh $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_weir
	$(Q)install -D -m 644 target/completions/weir.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/weir.fish
	$(Q)install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	$(Q)sed 's|=/usr/bin/|=$(PREFIX)/bin/|' deploy/systemd/weir-agent.service \
		>$(DESTDIR)$(PREFIX)/lib/systemd/system/weir-agent.service
	$(Q)[[ -e $(DESTDIR)/etc/weir/weir.yaml ]] || install -D -m 644 deploy/static/weir.yaml $(DESTDIR)/etc/weir/weir.yaml
	$(Q)[[ -e $(DESTDIR)/etc/default/weir-agent ]] || \
		install -D -m 644 deploy/systemd/weir-agent.default $(DESTDIR)/etc/default/weir-agent

# Settings stay, the stage of a migration, and what the kernel has: `weir cleanup` takes that away, before.
uninstall: ## take away what install has put below PREFIX=/usr/local; DESTDIR=root
	$(call say,REMOVE,"$(DESTDIR)$(PREFIX)")
	$(Q)cd $(DESTDIR)$(PREFIX) && rm -f bin/weir-agent bin/weir bin/kubectl-weir lib/systemd/system/weir-agent.service \
		share/man/man8/weir.8 share/man/man8/weir-*.8 share/bash-completion/completions/weir \
		share/zsh/site-functions/_weir share/fish/vendor_completions.d/weir.fish
	$(Q)[[ ! -d $(DESTDIR)/var/lib/weir ]] || rmdir --ignore-fail-on-non-empty $(DESTDIR)/var/lib/weir

test: bootstrap-test ## all tests; P=weir-core T=name picks a package and tests (most of them need root)
	$(Q)V=$(V) deploy/dev/test.sh $(if $(P),-p $(P),--workspace --exclude weir-deploy-tests) $(if $(T),-- $(T))

test-slow: bootstrap-test ## tests that wait for minutes: a server that is away, a spill that ends (root)
	$(call say,TEST,"what takes minutes")
	$(Q)cargo test $(QUIET) -p weir-agent --test it --test steering --test behaviours -- --ignored --skip holds_connections

# Each test program has a machine of its own, which starts within seconds; without KVM everything in it is slow.
test-kernel: bootstrap-test bootstrap-vm ## tests on Linux 6.1, in a virtual machine (root in there); P=weir-datapath T=name
	$(Q)CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$(CURDIR)/deploy/dev/vm.sh \
		V=$(V) deploy/dev/test.sh -p $(or $(P),weir-datapath) --tests $(if $(T),-- $(T))

# It wants Helm, a browser, packages and a whole cluster, which take minutes to build and longer to run.
test-deploy: bootstrap-deploy build ## what is deployed: chart, manifests, image, packages, page, an upgrade under load (root); T=name picks tests
	$(call say,DEPLOY,"$(or $(T),all)")
	$(Q)cargo test $(QUIET) -p weir-deploy-tests -- --include-ignored --nocapture $(T)
	$(if $(T),,$(Q)$(MAKE) image)
	$(if $(T),,$(Q)$(XTASK) rollout)

manifests: bootstrap-deploy ## deploy/weir.yaml, the Kustomize base, the chart's README and snapshots, from the chart
	$(call say,WRITE,"deploy/weir.yaml deploy/kustomize/base deploy/helm/weir/README.md")
	$(Q)WEIR_WRITE_DOCS=1 INSTA_UPDATE=always cargo test $(QUIET) -p weir-deploy-tests --test chart --test kustomize

demo: build ## a small cluster in network namespaces (root); KEEP=1 leaves it running
	$(call say,DEMO,"")
	$(Q)$(XTASK) demo $(if $(filter 1,$(KEEP)),--keep)

# PROCS: tests at the same time; most of their time is waiting.
conformance: bootstrap-conformance build $(if $(filter chart,$(PROXY)),image) ## Kubernetes' tests of services (root); FOCUS=regex PROXY=kube-proxy|chart KEEP=1
	$(call say,CONFORM,"$(or $(FOCUS),all that concern services) ($(or $(PROXY),weir))")
	$(Q)$(XTASK) conformance $(if $(PROXY),--proxy $(PROXY)) $(if $(FOCUS),--focus '$(FOCUS)') \
		$(if $(PROCS),--procs $(PROCS)) $(if $(filter 1,$(KEEP)),--keep)

conformance-report: ## docs/conformance.md, from the results of both proxies
	$(Q)$(XTASK) conformance-report

lint: lint-rust lint-c lint-shell lint-deny lint-spdx lint-size ## everything that a change must pass besides tests

verify: bpf ## load every BPF object with bpftool and print the sizes of programs (root); WALKED=1: what the verifier walked, too
	$(Q)WALKED=$(WALKED) deploy/dev/verify.sh $(BPF_OBJECTS)

bench-packet: bootstrap-bench build ## nanoseconds per packet, by BPF_PROG_RUN (root); CASE=established|new_flow|not_ours
	$(call say,BENCH,packet)
	$(Q)$(XTASK) bench-packet $(if $(CASE),--case '$(CASE)')

bench-sync: bootstrap-bench build ## from API server to maps, with thousands of services (root)
	$(call say,BENCH,sync)
	$(Q)$(XTASK) bench-sync

bench-steering: bootstrap-bench build ## a step of load, the agent's CPU time, 10,000 open connections (root); ONLY=part REPS=n
	$(call say,BENCH,steering)
	$(Q)$(XTASK) bench-steering $(if $(ONLY),--only '$(ONLY)') $(if $(REPS),--reps '$(REPS)')

bench-flood: bootstrap-bench build ## open and new connections beside a flood of SYNs (root); SYNS=n SEED=n
	$(call say,BENCH,flood)
	$(Q)$(XTASK) bench-flood $(if $(SYNS),--syns '$(SYNS)') $(if $(SEED),--seed '$(SEED)')

bench-killed-pod: bootstrap-bench build ## new connections while a pod is gone without a FIN (root); REPS=n SECONDS=n RATE=n
	$(call say,BENCH,killed-pod)
	$(Q)$(XTASK) bench-killed-pod $(if $(REPS),--reps '$(REPS)') $(if $(SECONDS),--seconds '$(SECONDS)') \
		$(if $(RATE),--rate '$(RATE)')

# 24 minutes. A shorter run shows that all of it works.
soak: bootstrap-bench build ## a cluster in use while everything in it changes (root); MINUTES=n SEED=n
	$(call say,SOAK,"$(or $(MINUTES),24) minutes")
	$(Q)$(XTASK) soak $(if $(MINUTES),--minutes '$(MINUTES)') $(if $(SEED),--seed '$(SEED)')

# 40 minutes. A figure is a result when each of its points was measured three times.
bench-papers: bootstrap-bench build ## the papers' figures beside real kube-proxy (root); FIGURE=5|6|7|8|edgemesh REPS=n
	$(call say,BENCH,"papers: $(if $(FIGURE),figure $(FIGURE),all figures)")
	$(Q)$(XTASK) bench-papers $(if $(FIGURE),--figure '$(FIGURE)') $(if $(REPS),--reps '$(REPS)')

# Five hours. A figure is a result when it was measured five times; REPS=1 SECONDS=2 SERVICES=10 shows within ten
# minutes that all of it works.
bench-world: bootstrap-bench build ## connections end to end beside real kube-proxy (root); CASE=name REPS=n SECONDS=n SERVICES=n RATE=n RESUME=1
	$(call say,BENCH,"world: $(or $(CASE),all cases)")
	$(Q)$(XTASK) bench-world $(if $(CASE),--case '$(CASE)') $(if $(REPS),--reps '$(REPS)') \
		$(if $(SECONDS),--seconds '$(SECONDS)') $(if $(SERVICES),--services '$(SERVICES)') $(if $(RATE),--rate '$(RATE)') \
		$(if $(filter 1,$(RESUME)),--resume)

# Needs no root.
sim: bootstrap-base ## every policy in virtual time, against the optimum; ONLY=scenario POLICY=name SEED=n
	$(call say,SIM,"$(or $(ONLY),all scenarios)")
	$(Q)$(XTASK) sim $(if $(ONLY),--only '$(ONLY)') $(if $(POLICY),--policy '$(POLICY)') $(if $(SEED),--seed $(SEED))

# What the two differ about is kept in crates/datapath/tests/corpus, which every test run plays.
fuzz: bootstrap-test ## the programs against their model, random scenarios for SECONDS=600 (root); SEED=n
	$(call say,FUZZ,"$(or $(SECONDS),600) s")
	$(Q)FUZZ_SECONDS=$(or $(SECONDS),600) $(if $(SEED),WEIR_TEST_SEED=$(SEED)) \
		cargo test $(QUIET) -p weir-datapath --test it fuzz:: -- --nocapture

docs: bootstrap-docs ## the manual as a book, in target/book
	$(call say,BOOK,docs)
	$(Q)deploy/dev/book.sh $(CACHE)/bin/mdbook

format: bootstrap-lint ## rewrite all sources in the style that lint checks
	$(call say,FORMAT,"Rust and C")
	$(Q)cargo fmt --all
	$(Q)clang-format-19 -i $(C_SOURCES)

clean: ## remove what was built (not the cache of tools)
	$(call say,CLEAN,target)
	$(Q)cargo clean --quiet
	$(Q)rm -rf target/bpf target/test.log

help: ## this list
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1\t\2/p' Makefile | while IFS=$$'\t' read -r verb text; do \
		printf '  make %-18s %s\n' "$$verb" "$$text"; done

# ---- tools ----------------------------------------------------------------------------------------------------------

BOOTSTRAPS := $(addprefix bootstrap-,base test bench conformance deploy lint docs static package vm)

bootstrap: $(filter-out bootstrap-vm,$(BOOTSTRAPS)) ## bring the tools of all verbs at once, but for bootstrap-vm

$(BOOTSTRAPS): bootstrap-%:
	$(Q)deploy/dev/bootstrap.sh $*

# ---- BPF ------------------------------------------------------------------------------------------------------------

bpf: $(BPF_OBJECTS) ## the BPF objects, in target/bpf (cargo builds its own copies with the same flags)

target/bpf/%.bpf.o: bpf/%.bpf.c bpf/flags Makefile | bootstrap-base
	$(call say,CLANG,$(@F))
	$(Q)mkdir -p $(@D)
	$(Q)$(CLANG) @bpf/flags $(BPF_INCLUDE) -MMD -MP -MF target/bpf/$*.d -MT $@ -c $< -o $@
	$(Q)$(LLVM_STRIP) -g $@

-include $(BPF_OBJECTS:.bpf.o=.d)

# ---- lint -----------------------------------------------------------------------------------------------------------

lint-rust: bootstrap-lint
	$(call say,FMT,"all crates")
	$(Q)cargo fmt --all --check
	$(call say,CLIPPY,"all crates")
	$(Q)cargo clippy $(QUIET) --workspace --all-targets -- -D warnings

lint-c: bootstrap-lint
	$(call say,FORMAT,bpf)
	$(Q)clang-format-19 --dry-run -Werror $(C_SOURCES)

lint-shell: bootstrap-lint
	$(call say,SHELL,"$(SHELL_SCRIPTS)")
	$(Q)shellcheck $(SHELL_SCRIPTS)

# Advisories are not checked here: their database needs the network at every run.
lint-deny: bootstrap-lint
	$(call say,DENY,"bans licenses sources")
	$(Q)$(CACHE)/bin/cargo-deny --log-level error check --hide-inclusion-graph bans licenses sources

lint-spdx:
	$(call say,SPDX,bpf)
	$(Q)bad=$$(grep -L 'SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0' $(C_SOURCES) || :); \
	if [[ -n $$bad ]]; then \
		echo "no line 'SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0' in:" $$bad >&2; exit 1; fi

# Only a warning: a long file asks for a split by concept, which takes thought.
lint-size:
	$(call say,SIZE,"files of more than 400 lines")
	$(Q)find . \( -name target -o -name .git \) -prune -o -type f \( -name '*.rs' -o -name '*.[ch]' -o -name '*.sh' \) \
		-exec awk '{ lines[FILENAME]++ } END { for (file in lines) if (lines[file] > 400) \
			printf "           warning: %s has %d lines\n", file, lines[file] }' {} +
