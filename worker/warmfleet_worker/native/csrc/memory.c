/* Anonymous memory in huge pages. */
#define _GNU_SOURCE
#include "warmfleet_step.h"

#include <stddef.h>
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20 };

static size_t whole_pages(int64_t bytes) { return ((size_t)bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE; }

void *wf_map(int64_t bytes) {
    size_t size = whole_pages(bytes);
    void *address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) return NULL;
    madvise(address, size, MADV_HUGEPAGE);
    return address;
}

void wf_unmap(void *address, int64_t bytes) {
    if (address) munmap(address, whole_pages(bytes));
}
