# trainerd. `make` builds into build/; see README.md. Source files are found, not listed.
BUILD ?= build
CUDA  ?= $(if $(shell command -v nvcc 2>/dev/null),1)# `make CUDA=` builds and tests the rest
PREFIX ?= /usr/local
VERSION := 0.1.0

# Rules and recipes separate words at spaces, and a shell interprets some characters.
SPECIAL := ' " ` $$ \ & ; | < > ( ) [ ] * ? \#
UNUSABLE = $(or $(if $(word 2,$1),space),$(firstword $(foreach c,$(SPECIAL),$(if $(findstring $c,$1),character $c))))
$(foreach p,CURDIR BUILD,$(if $(call UNUSABLE,$($p)),$(error $($p): the path $(if $(filter BUILD,$p),of BUILD,of the repository) \
    has a $(call UNUSABLE,$($p)); expected a path without spaces and without $(SPECIAL); \
    $(if $(filter BUILD,$p),choose another folder: make BUILD=FOLDER,move or clone the repository to another folder))))

# Without the rules of make itself, which take longer to try for each header than all else before the first recipe.
MAKEFLAGS += -r
# Use all cores unless -j is given.
ifeq ($(MAKELEVEL)$(filter -j% --jobs%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell nproc)
endif

CC     ?= cc
OPT    ?= -O2 -g
# A compiler cache, where one is installed; `make CCACHE=` compiles without it. It serves all clones, since debug information
# has paths relative to the repository.
CCACHE ?= $(if $(findstring ccache,$(CC)),,$(shell command -v ccache 2>/dev/null))
# A cache that cannot be used, for example because its folder cannot be written, would end the build.
ifneq ($(findstring ccache,$(CCACHE) $(CC)),)
ifeq ($(CCACHE_DISABLE)$(CCACHE_WORKS),)
CCACHE_ERROR := $(shell $(CCACHE) $(CC) -c -x c /dev/null -o /dev/null 2>&1 | grep '^ccache: error: ' | grep -v 'find compiler')
$(if $(CCACHE_ERROR),$(warning compiling without the compiler cache: $(CCACHE_ERROR); CCACHE_DIR=FOLDER chooses a folder that can be written))
export $(if $(CCACHE_ERROR),CCACHE_DISABLE,CCACHE_WORKS) := 1
endif
endif
RELATIVE := -fdebug-prefix-map=$(CURDIR)=.
CPPFLAGS := -Ilib -Itest -I. -I$(BUILD) -MMD -MP -D_GNU_SOURCE -DTRAINERD_VERSION='"$(VERSION)"'
# Messages are truncated at the end of their buffers on purpose; gcc would warn about each.
GCC_ONLY := $(if $(shell $(CC) --version | grep -i clang),,-Wno-format-truncation)
# Hardening; not with sanitizers, whose checks see less with it. _FORTIFY_SOURCE needs optimization.
MACHINE := $(shell $(CC) -dumpmachine)
BRANCHES := $(if $(filter x86_64-%,$(MACHINE)),-fcf-protection)$(if $(filter aarch64-%,$(MACHINE)),-mbranch-protection=standard)
HARDEN := $(if $(SAN),,-fPIE -fstack-protector-strong -fstack-clash-protection $(BRANCHES) \
            $(if $(findstring -O0,$(OPT)),,-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3))
# -ffp-contract=off: lib/op/op.h has the reasons.
CFLAGS   := -std=c11 $(OPT) -Wall -Wextra -Werror -ffp-contract=off -fno-math-errno -pthread \
            $(HARDEN) $(RELATIVE) $(GCC_ONLY) $(SAN)
LDLIBS   := -Wl,--as-needed -lgrpc -lgpr -lprotobuf-c -luv -lcjson -ldnnl -lmicrohttpd -lssl -lcrypto \
            -lz -ljpeg -lpng -lxxhash -lsystemd -lgomp -ldl -lm -lpthread

GOLD     := $(if $(shell command -v ld.gold),-fuse-ld=gold)# halves the link time of the 150 test programs

PROTO := $(wildcard proto/*.proto)
GEN   := $(PROTO:%.proto=$(BUILD)/%.pb-c.c)
LIB   := $(patsubst %,$(BUILD)/%.o,$(shell find lib -name '*.c')) $(GEN:.c=.o) $(BUILD)/proto/descriptors.o
MAINS := daemon/trainerd.c daemon/trainerctl.c
APP   := $(patsubst %,$(BUILD)/%.o,$(filter-out $(MAINS),$(wildcard daemon/*.c))) $(addprefix $(BUILD)/daemon/,recipes.o page.o code.o)
KIT   := $(patsubst %,$(BUILD)/%.o,$(wildcard test/harness/*.c test/sim/*.c))
TEST  := $(patsubst %.c,$(BUILD)/%,$(wildcard test/*/test_*.c))
TRUE  := $(if $(CUDA),$(patsubst %.cu,$(BUILD)/%,$(wildcard test/true/test_*.cu)))
FUZZ  := $(patsubst %.c,$(BUILD)/%,$(wildcard test/fuzz/fuzz_*.c))
CASES := $(BUILD)/test/conformance/run_cases
OPS   := $(BUILD)/test/ops/ops
BENCH := $(patsubst %.c,$(BUILD)/%,$(wildcard test/bench/bench_*.c))
BIN   := $(BUILD)/trainerd $(BUILD)/trainerctl

# The plugin contains all .cu files of lib/ and these C files, compiled with -fPIC. nvcc builds the plugin for
# GPUs; g++, with the emulator of test/cuda, builds one that computes on the CPU.
CU    := $(sort $(shell find lib -name '*.cu'))
PIC   := $(patsubst %,$(BUILD)/pic/%.o,$(shell find lib/base lib/device lib/tensor -name '*.c') $(wildcard lib/op/*.c) lib/op/elem/loops.c \
             $(addprefix lib/op/,gemm/contract.c gemm/einsum_chain.c gemm/einsum_sides.c gemm/mlp_parts.c shape/copy.c))
PLUGIN := $(if $(CUDA),$(if $(CU),$(BUILD)/trainerd-cuda.so))
CUDA_ARCH ?= 90# `make CUDA_ARCH="80 90"`: code for both architectures
CUDA_CODE := $(foreach arch,$(CUDA_ARCH),-gencode arch=compute_$(arch),code=[sm_$(arch),compute_$(arch)])
NVCC_OPT  ?= -O3 -Xptxas -warn-spills $(CUDA_CODE)
# For tests, which have no GPU: a third of the compile time, without machine code. `make` rebuilds with NVCC_OPT.
NVCC_TEST := -Xcicc -O1 -Xcompiler -O0 -gencode arch=compute_$(firstword $(CUDA_ARCH)),code=compute_$(firstword $(CUDA_ARCH))
NVCC_AS_BUILT = $$(cat $(BUILD)/nvcc_opt 2>/dev/null || echo '$(NVCC_TEST)')
NVCCFLAGS := -std=c++20 $(NVCC_OPT) -lineinfo -Ilib -I. \
             --compiler-options -fPIC,-Wall,-fvisibility=hidden -DTRAINERD_VERSION='"$(VERSION)"'
CXX    ?= g++
EMULATED_OPT ?= -O1 -g1# half the compile time of -O2 -g, and as fast at run time
CXXFLAGS := -x c++ -std=c++20 $(EMULATED_OPT) -DCUDA_EMULATED -Itest/cuda/include -Ilib -Itest -I. -MMD -MP \
            -DTRAINERD_VERSION='"$(VERSION)"' -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno -fno-exceptions -fno-rtti \
            -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-missing-field-initializers $(RELATIVE) $(SAN)
EMULATED := $(if $(CU),$(addprefix $(BUILD)/emulated/,trainerd-cuda.so trainerd libnvidia-ml.so.1))
EMULATOR := $(patsubst %,$(BUILD)/pic/%.o,$(filter-out test/cuda/shared_% test/cuda/test_%,$(wildcard test/cuda/*.c)))
# The order matters: the first and the last object enclose the shared memory of the others.
emulated_cu = $(patsubst %,$(BUILD)/%.o,pic/test/cuda/shared_begin.c $(addprefix emulated/,$(1)) \
                pic/test/cuda/shared_end.c)

all: $(BIN) $(PLUGIN) ## builds trainerd, trainerctl and, where nvcc is installed, the CUDA plugin

.DELETE_ON_ERROR:
.SECONDARY:

# A command failed, perhaps because a package is missing.
MISSING = { scripts/setup --missing build >&2; false; }
# Generate code first, because other files include its headers.
$(BUILD)/proto/%.pb-c.c $(BUILD)/proto/%.pb-c.h: proto/%.proto
	@mkdir -p $(@D)
	@protoc-c -Iproto --c_out=$(@D) $< || $(MISSING)
# Reflection: the file descriptors as one FileDescriptorSet in a C array.
$(BUILD)/proto/descriptors.c: $(PROTO) scripts/embed
	@mkdir -p $(@D)
	@protoc -Iproto --include_imports --descriptor_set_out=$(@D)/descriptors.bin \
	    $(filter-out proto/onnx.proto proto/summary.proto proto/example.proto,$(PROTO))
	@scripts/embed proto_descriptors $(@D)/descriptors.bin >$@

# The export scripts as C arrays, for `trainerctl recipe`.
RECIPES := $(sort $(wildcard config/recipes/*.py))
$(BUILD)/daemon/recipes.c: $(RECIPES) scripts/embed
	@mkdir -p $(@D)
	@{ echo '#include "daemon/recipes.h"'; \
	   for f in $(RECIPES); do scripts/embed recipe_$$(basename $$f .py) $$f || exit 1; done; \
	   echo 'const struct recipe recipes[] = {'; \
	   for f in $(RECIPES); do n=$$(basename $$f .py); echo "{ \"$$n\", recipe_$$n, &recipe_$${n}_bytes },"; done; \
	   echo '};'; echo 'const size_t n_recipes = sizeof(recipes) / sizeof(recipes[0]);'; } >$@
# The files of the status page as C arrays.
PAGE := $(sort $(wildcard daemon/page/*.*))
$(BUILD)/daemon/page.c: $(PAGE) scripts/embed
	@mkdir -p $(@D)
	@{ echo '#include "daemon/page.h"'; \
	   for f in $(PAGE); do n=$${f##*/}; scripts/embed page_$${n%.*}_$${n##*.} $$f || exit 1; done; \
	   echo 'const struct page_file page_files[] = {'; \
	   for f in $(PAGE); do n=$${f##*/}; s=page_$${n%.*}_$${n##*.}; echo "{ \"$$n\", $$s, &$${s}_bytes },"; done; \
	   echo '};'; echo 'const size_t n_page_files = sizeof(page_files) / sizeof(page_files[0]);'; } >$@
# A digest of the code that decides the bits of a step, without comments (daemon/versions.h).
CODE := $(sort $(shell find $(addprefix lib/,base code comm data device engine graph op optim opts tensor train) \
            -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh'))
$(BUILD)/daemon/code.c: $(CODE)
	@mkdir -p $(@D)
	@{ echo '#include "daemon/versions.h"'; \
	   echo "const char versions_code[] = \"$$(cat $^ | $(CC) -fpreprocessed -P -E -w -x c - | sha256sum | cut -c 1-16)\";"; } >$@
# The commit of the source files, written again only if it has changed; not by a test, which would link the programs again
# that others of its run use.
$(BUILD)/daemon/commit.c: $(if $(TEST_RING),,FORCE)
	@mkdir -p $(@D)
	@commit=$$(scripts/commit) && \
	    { echo '#include "daemon/build_commit.h"'; echo "const char build_commit[] = \"$${commit:+commit $$commit}\";"; } >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(addprefix $(BUILD)/daemon/,recipes.o page.o code.o commit.o): $(BUILD)/daemon/%.o: $(BUILD)/daemon/%.c $(BUILD)/flags
	@echo "  CC    $<"
	@$(CCACHE) $(CC) $(CPPFLAGS) $(CFLAGS) -c $< -o $@

# Tests: half the compile time at equal run time, because the libraries do the work. UBSan does not check the test code itself.
# private: the prerequisites of these objects keep their own flags.
$(addsuffix .c.o,$(TEST) $(FUZZ)): private CFLAGS += -O1 -g1 -Wno-maybe-uninitialized $(if $(findstring undefined,$(SAN)),-fno-sanitize=undefined)
$(BUILD)/flags: FORCE # the options of the existing objects
	@mkdir -p $(@D)
	@echo '$(CC) $(CFLAGS)' | cmp -s - $@ || echo '$(CC) $(CFLAGS)' >$@
$(BUILD)/%.c.o: %.c $(BUILD)/flags | $(GEN)
	@mkdir -p $(@D)
	@echo "  CC    $<"
	@$(CCACHE) $(CC) $(CPPFLAGS) $(CFLAGS) -c $< -o $@ || $(MISSING)
$(BUILD)/proto/%.o: $(BUILD)/proto/%.c $(BUILD)/flags
	@echo "  CC    $<"
	@$(CCACHE) $(CC) $(CPPFLAGS) $(CFLAGS) -c $< -o $@

$(BUILD)/libtrainerd.a: $(LIB)
	@rm -f $@
	@ar rcs $@ $^
$(BUILD)/libapp.a: $(APP)
	@rm -f $@
	@ar rcs $@ $^
$(BUILD)/libkit.a: $(KIT) # an archive: a test program without networks contains no network code
	@rm -f $@
	@ar rcs $@ $^
$(BIN): $(BUILD)/%: $(BUILD)/daemon/%.c.o $(BUILD)/daemon/commit.o $(BUILD)/libapp.a $(BUILD)/libtrainerd.a
	@echo "  LINK  $@"
	@$(CC) $(CFLAGS) $(if $(SAN),,-pie) -Wl,-z,relro,-z,now -o $@ $^ $(LDLIBS)
# Calls of test programs that arrive in test/harness: plan_new.c verifies each plan, chosen.c chooses tests by name.
WRAPPED := -Wl,--wrap=plan_new,--wrap=_cmocka_run_group_tests
$(TEST) $(FUZZ) $(BENCH) $(CASES): $(BUILD)/%: $(BUILD)/%.c.o $(BUILD)/libkit.a $(BUILD)/libapp.a $(BUILD)/libtrainerd.a
	@echo "  LINK  $@"
	@$(CC) $(CFLAGS) $(GOLD) $(if $(filter $(BENCH),$@),,$(WRAPPED)) -o $@ $(filter-out %.a,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LDLIBS) -lcmocka

# ops runs the programs of test/op.
$(OPS): | $(filter $(BUILD)/test/op/%,$(TEST))
$(OPS): $(patsubst %,$(BUILD)/%.o,$(wildcard test/ops/*.c)) $(BUILD)/libkit.a $(BUILD)/libapp.a $(BUILD)/libtrainerd.a
	@echo "  LINK  $@"
	@$(CC) $(CFLAGS) $(GOLD) $(WRAPPED) -o $@ $(filter-out %.a,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LDLIBS) -lcmocka

$(BUILD)/pic/%.c.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  CC    $< (PIC)"
	@$(CCACHE) $(CC) $(CPPFLAGS) $(CFLAGS) -fPIC -fvisibility=hidden -c $< -o $@
$(BUILD)/pic/test/cuda/%.o $(BUILD)/test/cuda/%.o: CPPFLAGS += -Itest/cuda/include
$(BUILD)/libpic.a: $(PIC)
	@rm -f $@
	@ar rcs $@ $^
$(BUILD)/nvcc_opt: FORCE # the options of the existing objects
	@mkdir -p $(@D)
	@echo '$(NVCC_OPT)' | cmp -s - $@ || echo '$(NVCC_OPT)' >$@
$(BUILD)/%.cu.o: %.cu $(BUILD)/nvcc_opt
	@mkdir -p $(@D)
	@echo "  NVCC  $<"
	@$(CCACHE) nvcc $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
# Optimizers round every product, as on the CPU: with fused multiply-adds the variance of a centered
# rmsprop, a difference of nearly equal numbers, differs in the fifth digit.
$(BUILD)/lib/optim/%.cu.o: NVCCFLAGS += -fmad=false
$(BUILD)/lib/code/%.cu.o: NVCCFLAGS += -fmad=false# codes have the bytes of the CPU
$(BUILD)/trainerd-cuda.so: $(CU:%=$(BUILD)/%.o) $(BUILD)/libpic.a scripts/plugin.map
	@echo "  LINK  $@"
	@nvcc -shared -cudart static -o $@ $(filter-out %.map,$^) -lcublasLt -lcudnn -lnccl \
	    -Xlinker -z,defs,-z,nodelete,-z,relro,-z,now,--version-script=scripts/plugin.map
$(BUILD)/emulated/%.cu.o: %.cu
	@mkdir -p $(@D)
	@echo "  CXX   $<"
	@$(CCACHE) $(CXX) $(CXXFLAGS) -c $< -o $@
$(BUILD)/emulated/trainerd-cuda.so: $(call emulated_cu,$(CU)) $(EMULATOR) $(BUILD)/libpic.a scripts/plugin.map
	@echo "  LINK  $@"
	@$(CC) $(CFLAGS) -shared -o $@ $(filter-out %.map,$^) $(LDLIBS) \
	    -Wl,-z,defs,-z,nodelete,-z,relro,-z,now,--version-script=scripts/plugin.map
$(BUILD)/emulated/libnvidia-ml.so.1: test/cuda/nvml/nvml.c
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS) -fPIC -fvisibility=hidden -shared -o $@ $<
$(BUILD)/emulated/trainerd: $(BUILD)/trainerd # a program loads the plugin from its own folder
	@mkdir -p $(@D)
	@ln -f $< $@
$(filter $(BUILD)/test/cuda/%,$(TEST)): $(call emulated_cu,$(CU) $(wildcard test/cuda/*.cu)) $(EMULATOR)

# Tests with the real cuDNN and no GPU. The library loads a driver (test/true/libcuda.c) without function.
TRUE_PARTS := $(patsubst %,$(BUILD)/lib/op/%.cu.o,cudnn/graph conv/cudnn conv/copy conv/pass attention/sdpa)
$(BUILD)/test/true/libcuda.so.1: test/true/libcuda.c
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS) -fPIC -shared -Wl,-soname,libcuda.so.1 -o $@ $<
$(TRUE): $(BUILD)/%: $(BUILD)/%.cu.o $(TRUE_PARTS) $(BUILD)/test/harness/chosen.c.o $(BUILD)/libpic.a $(BUILD)/test/true/libcuda.so.1
	@echo "  LINK  $@"
	@nvcc -cudart static -o $@ $(filter-out %.so.1,$^) -Xlinker --no-as-needed,$(filter %.so.1,$^),--as-needed -Xlinker --wrap=_cmocka_run_group_tests -lcudnn -lcmocka -lcrypto -Xlinker '-rpath,$$ORIGIN'

test-programs: $(TEST) $(OPS) $(FUZZ) $(EMULATED) $(TRUE) ## builds all test programs

fuzz-programs: $(FUZZ) ## builds the fuzz programs

setup: ## installs the packages that the build needs
	@scripts/setup build
demo: ## installs packages, builds, and trains the digits with two tasks
	@scripts/setup build demo
	@$(MAKE) --no-print-directory CUDA= all
	@scripts/demo
# The time of the build is printed with that of the tests. exec: make ends scripts/test itself at SIGTERM, not a shell before it.
test: ## installs packages, builds, and runs all tests but those that test/nightly names
	@began=$$(date +%s) && scripts/setup build test && \
	    $(MAKE) --no-print-directory all test-programs NVCC_OPT="$(NVCC_AS_BUILT)" && \
	    exec env BUILD=$(BUILD) scripts/test --built-in $$(($$(date +%s) - began)) --ring $(RING)
RING ?= test
# Only the tests with one of the words T in their path (scripts/test), and only what these need. BUILD_ONLY=yes runs none.
check: ## runs the tests with one of the words T in their path: make check T="lease e2e/test_run"
	@[ -n "$(T)" ] || { echo 'check: no words; usage: make check T="lease e2e/test_run"' >&2; exit 2; }
	@scripts/setup build test
	@targets=$$(BUILD=$(BUILD) CUDA=$(CUDA) scripts/test --needs $(T)); \
	    [ -n "$$targets" ] || { echo 'check: no test has one of these words in its path: $(T)' >&2; exit 2; }; \
	    $(MAKE) -s $$targets NVCC_OPT="$(NVCC_AS_BUILT)"
	@[ -n "$(BUILD_ONLY)" ] || exec env BUILD=$(BUILD) scripts/test $(T)
# The unit tests of the folders that differ from the last commit (in a clean tree: from the commit before), as far as they
# end within a few seconds, the tests with the fake engine, and a part of the membership simulator; the order of the
# folders, and the format of the changed files.
QUICK := test/train/test_protocol test/engine/test_ test/member/test_node_random
quick: ## checks what changed, in about 10 s: unit tests, layers, format
	@began=$$(date +%s) && scripts/setup build test && words="$$(scripts/changed) $(QUICK)" && \
	    $(MAKE) -s $(BUILD)/libtrainerd.a $(BUILD)/libapp.a $$(BUILD=$(BUILD) scripts/test --needs $$words) NVCC_OPT="$(NVCC_AS_BUILT)" && \
	    scripts/layers >/dev/null && BUILD=$(BUILD) scripts/calls >/dev/null && scripts/untimed && \
	    { files=$$(scripts/changed --files); [ -z "$$files" ] || scripts/format --check $$files; } && \
	    exec env SEEDS=2000 BUILD=$(BUILD) scripts/test --built-in $$(($$(date +%s) - began)) --within 5 $$words
# All tests, or those that T chooses, with AddressSanitizer and UBSan.
SANITIZED := CUDA= BUILD=build/san OPT='-O1 -g1' \
             SAN='-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer'
san: ## runs the tests, or those that T selects, with address and undefined sanitizers
	@$(MAKE) --no-print-directory $(if $(T),check,test) $(SANITIZED)
# The part of `make san` that .ci/run runs: without the kernels, the fuzz programs, the scripts, emulated GPUs and tests of
# large memory.
SAN_TESTS := $(foreach f,base loop conf member tls rdzv code comm data ckpt ps graph engine train preflight daemon,test/$(f)/test_) \
             -gpu -code/test_code_cuda -code/test_residual_cuda -train/test_precision -train/test_tables -graph/test_large
san-units: ## runs the unit tests of .ci/run with address and undefined sanitizers
	@$(MAKE) --no-print-directory san T="$(SAN_TESTS)"
# Runs the unit tests of folders with threads, or the tests selected by T, with ThreadSanitizer. It does not
# support the fences of lib/engine/place.c, whose data are atomic anyway.
# Left out: emulated GPUs, the test that leaves memcpy() by a signal handler, which ThreadSanitizer does not
# support, and the test that floods a task from Python: on a busy machine the slow task answers too late.
TSAN_TESTS := $(foreach f,base loop data comm train rdzv ckpt metrics preflight,test/$(f)/test_) test/ps/test_client test/ps/test_files \
              -gpu -train/test_precision -train/test_tables -base/test_mapping -rdzv/test_control
tsan: ## runs the unit tests with threads, or those that T selects, with ThreadSanitizer
	@$(MAKE) --no-print-directory check CUDA= BUILD=build/tsan OPT='-O1 -g1' \
	    SAN='-fsanitize=thread $(if $(GCC_ONLY),-Wno-tsan)' T='$(or $(T),$(TSAN_TESTS))'
nightly: ## runs what takes hours, and states what it covered: scripts/nightly --help
	@scripts/nightly $(PARTS)
# Runs all fuzz programs with sanitizers for SECONDS in total.
fuzz: ## runs all fuzz programs with sanitizers for SECONDS (60) from SEED (1)
	@scripts/setup build test
	@$(MAKE) --no-print-directory fuzz-programs $(SANITIZED)
	@BUILD=build/san scripts/fuzz --seconds $(or $(SECONDS),60) --seed $(or $(SEED),1) $(ONLY)
# Runs the node tests of the ONNX releases in test/conformance/releases.
conformance: ## runs the node tests of the ONNX releases
	@scripts/setup build conformance
	@$(MAKE) --no-print-directory CUDA= $(CASES)
	@BUILD=$(BUILD) test/conformance/run
# Validates config/kubernetes against the strict schemas of every Kubernetes from 1.27 on. CRDS: a folder with the
# definitions of the operators.
kubernetes: ## validates config/kubernetes against the schemas of each Kubernetes
	@scripts/setup kubernetes
	@build/venv-kubernetes/bin/python test/kubernetes/validate.py $(CRDS)
bench: ## runs the benchmarks beside their peers
	@scripts/setup build bench
	@BUILD=$(BUILD) scripts/bench
bench-programs: $(BIN) $(BENCH) $(BUILD)/test/member/test_node_many ## builds what the benchmarks need
# Needs a GPU. scripts/gpu runs more, also on a machine that cannot build.
bench-gpu: all $(OPS) ## runs the benchmarks of a GPU
	@BUILD=$(BUILD) scripts/bench gpu
# Trains with four tasks on four emulated hosts and injects every kind of fault.
chaos: all $(EMULATED) ## trains on four emulated hosts under random faults for SECONDS (60) from SEED (1)
	@BUILD=$(BUILD) scripts/chaos --seconds $(or $(SECONDS),60) --seed $(or $(SEED),1) --devices $(or $(DEVICES),cpu:1) \
	    $(if $(SCHEDULES),--schedules $(SCHEDULES)) $(if $(CALM),--calm $(CALM)) $(if $(LOAD),--load $(LOAD)) \
	    $(if $(DECKS),--decks $(DECKS)) $(if $(ONLY),--only '$(ONLY)') $(if $(PS),--ps $(PS)) \
	    $(if $(COMPRESSION),--compression $(COMPRESSION))
# The second script reads the object files.
layers: $(BUILD)/libtrainerd.a $(BUILD)/libapp.a ## proves which folder includes which, and that no calls form a cycle
	@scripts/layers
	@BUILD=$(BUILD) scripts/calls
# Formats all C and CUDA files but tables and other lines that scripts/format names.
format: ## formats all C and CUDA files
	@scripts/setup test
	@scripts/format
# For clangd and other tools that read C: $(BUILD)/compile_commands.json, an entry for each C and CUDA file.
compile_commands: $(GEN) ## writes the list of compile commands for clangd
	@{ scripts/compile_commands $(shell find lib daemon test -name '*.c' | sort) -- $(CC) $(CPPFLAGS) $(CFLAGS); \
	   scripts/compile_commands $(shell find lib test -name '*.cu' | sort) -- $(CXX) $(CXXFLAGS); } | \
	    sed '1s/^,/[/; $$s/$$/\n]/' >$(BUILD)/compile_commands.json
# Manual pages and completions, from what the programs print about themselves. The date of the pages and packages is
# that of the last commit, so that equal sources give equal files.
COMMIT_TIME = $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null || date +%s))
LAUNCHERS := $(notdir $(wildcard scripts/trainerd-*))
MANUAL := $(addprefix $(BUILD)/man/,trainerd.1 trainerctl.1 trainerd-job.5 trainerd.bash trainerctl.bash $(LAUNCHERS:=.1))
$(MANUAL): $(BUILD)/man/%: scripts/manual $(BIN) $(addprefix scripts/,$(LAUNCHERS))
	@mkdir -p $(@D)
	@SOURCE_DATE_EPOCH=$(COMMIT_TIME) scripts/manual $* $(BUILD) >$@
install: all $(MANUAL) ## installs below PREFIX (/usr/local)
	@BUILD=$(BUILD) DESTDIR=$(DESTDIR) PREFIX=$(PREFIX) PLUGIN=$(PLUGIN) scripts/install install
uninstall: ## removes what `make install` installed
	@BUILD=$(BUILD) DESTDIR=$(DESTDIR) PREFIX=$(PREFIX) scripts/install uninstall
# Debian packages in $(BUILD)/deb.
deb: all $(MANUAL) ## makes Debian packages in build/deb
	@BUILD=$(BUILD) VERSION=$(VERSION) PLUGIN=$(PLUGIN) SOURCE_DATE_EPOCH=$(COMMIT_TIME) scripts/deb
clean: ## removes the build folder
	rm -rf $(BUILD)

help: ## prints this list
	@LC_ALL=C sed -n 's/^\([a-z_-]*\):[^=]* ## \(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | sort | expand -t 18

FORCE:
.PHONY: FORCE help nightly all test-programs fuzz-programs setup demo test check quick san san-units tsan fuzz conformance kubernetes bench bench-gpu bench-programs chaos layers format compile_commands install uninstall deb clean
# Not below other folders: build/san and build/bare/* are builds of their own.
-include $(shell find $(addprefix $(BUILD)/,daemon emulated lib pic proto test) -name '*.d' 2>/dev/null)
