/* fiber.c - makecontext creates a context once; then _setjmp and _longjmp switch, which unlike
 * swapcontext need no system call. AddressSanitizer is notified of every switch. */
#undef _FORTIFY_SOURCE /* its longjmp() refuses to leave a stack for another one */
#include "cuda/fiber.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#else /* no sanitizer */
static void __sanitizer_start_switch_fiber(void **fake, const void *stack, size_t bytes)
{
    (void)fake, (void)stack, (void)bytes;
}
static void __sanitizer_finish_switch_fiber(void *fake, const void **stack, size_t *bytes)
{
    (void)fake, (void)stack, (void)bytes;
}
#endif

/* Stacks begin at different offsets in their pages; otherwise all stacks of a block would share few
 * cache sets. */
enum { STACK_BYTES = 256 << 10, COLOURS = 61, COLOUR_BYTES = 64 };

struct fiber {
    jmp_buf context;
    ucontext_t start;    /* of a fiber with `body`, until it starts */
    bool is_started;
    void (*body)(void);  /* NULL: the thread's own stack */
    void *map;           /* [guard page][stack]; owned, or NULL */
    size_t map_bytes;
    const void *stack;   /* lowest address, for the sanitizer */
    size_t stack_bytes;
    void *fake_stack;    /* of the sanitizer, while suspended */
};

static __thread struct fiber *switched_from, *switched_to;
static __thread size_t n_made;

struct fiber *fiber_here(void)
{
    struct fiber *f = calloc(1, sizeof(*f));

    if (f != NULL)
        f->is_started = true;
    return f;
}

static void begin(void)
{
    struct fiber *from = switched_from;

    __sanitizer_finish_switch_fiber(NULL, &from->stack, &from->stack_bytes);
    switched_to->body();
    abort(); /* a body does not return */
}

/* A separate function, because for the compiler getcontext may return twice. */
static void make_start(struct fiber *f)
{
    if (getcontext(&f->start) < 0)
        abort(); /* cannot fail here */
    f->start.uc_stack.ss_sp = (char *)f->map + f->map_bytes - STACK_BYTES;
    f->start.uc_stack.ss_size = STACK_BYTES - n_made++ % COLOURS * COLOUR_BYTES;
    makecontext(&f->start, begin, 0);
}

struct fiber *fiber_new(void (*body)(void))
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct fiber *f = calloc(1, sizeof(*f));

    if (f == NULL)
        return NULL;
    f->body = body;
    f->map_bytes = page + STACK_BYTES;
    f->map = mmap(NULL, f->map_bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (f->map == MAP_FAILED || mprotect(f->map, page, PROT_NONE) < 0) {
        if (f->map == MAP_FAILED)
            f->map = NULL;
        fiber_free(f);
        return NULL;
    }
    f->stack = (char *)f->map + page;
    f->stack_bytes = STACK_BYTES;
    make_start(f);
    return f;
}

void fiber_switch(struct fiber *from, struct fiber *to)
{
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
    if (_setjmp(from->context) == 0) {
        switched_from = from;
        switched_to = to;
        if (to->is_started)
            _longjmp(to->context, 1);
        to->is_started = true;
        setcontext(&to->start);
        abort(); /* setcontext fails only for an invalid context */
    }
    __sanitizer_finish_switch_fiber(from->fake_stack, NULL, NULL);
}

void fiber_free(struct fiber *f)
{
    if (f == NULL)
        return;
    if (f->map != NULL)
        munmap(f->map, f->map_bytes);
    free(f);
}
