#include "base/idle.h"

#include <link.h>
#include <malloc.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

/* The pages of a segment that was loaded without write permission equal those of the file. The pages of a segment
 * with write permission do not: they contain relocated addresses, also after they became read-only (RELRO). */
static int release_segments(struct dl_phdr_info *object, size_t size, void *arg)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

    (void)size, (void)arg;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &object->dlpi_phdr[i];
        uintptr_t begin = (object->dlpi_addr + p->p_vaddr) & ~(page - 1);
        uintptr_t end = (object->dlpi_addr + p->p_vaddr + p->p_filesz) & ~(page - 1);

        if (p->p_type == PT_LOAD && (p->p_flags & PF_W) == 0 && end > begin)
            (void)madvise((void *)begin, end - begin, MADV_DONTNEED); /* saves memory only */
    }
    return 0;
}

void idle_release_memory(void)
{
    (void)malloc_trim(0); /* returns whether pages were released */
    dl_iterate_phdr(release_segments, NULL);
}
