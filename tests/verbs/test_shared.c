/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a peer that the NIC maps instead of copying it through the kernel: which memory
 * qualifies, that READs and WRITEs reach the correct bytes in it, and that they keep their order
 * relative to those of private memory.
 */
#include <fcntl.h>

#define SIDE_DEPTH 64u
#include "tests/verbs/side.h"

#define PAGE 4096u
#define READS 16u
#define UNTOUCHED 0xee

static struct side s;
/* MR of `far`: its memory is the file from page 64 on, mapped at `mapped` */
static struct dv_mr mr;
static uint8_t *mapped;
static int file;

static int new_file(uint64_t bytes, int seals)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static uint8_t *map(int fd, uint64_t offset, uint64_t bytes, void *at, int flags)
{
	uint8_t *got = mmap(
		at, bytes, PROT_READ | PROT_WRITE, flags | (at ? MAP_FIXED : 0), fd, (off_t)offset);

	assert_ptr_not_equal(got, MAP_FAILED);
	return got;
}

static int setup(void **state)
{
	side_open(&s);
	file = new_file(2 * SIDE_BYTES, F_SEAL_SHRINK);
	mapped = map(file, 64 * PAGE, SIDE_BYTES, NULL, MAP_SHARED);
	good(dv_mr_register(s.far,
		&(struct dv_memory){.base = mapped,
			.length = SIDE_BYTES,
			.access = DV_LOCAL_WRITE | DV_REMOTE_READ | DV_REMOTE_WRITE,
			.memfd = -1},
		&mr));
	memset(s.local, UNTOUCHED, SIDE_BYTES);
	for (unsigned i = 0; i < SIDE_BYTES; i++) {
		s.remote[i] = (uint8_t)(i / PAGE * 31 + i % PAGE * 7 + 1);
		mapped[i] = (uint8_t)(i / PAGE * 17 + i % PAGE * 5 + 2);
	}
	return 0;
}

static int teardown(void **state)
{
	good(dv_mr_deregister(s.far, &mr));
	munmap(mapped, SIDE_BYTES);
	close(file);
	side_close(&s);
	return 0;
}

static void post_in(const struct dv_mr *there, enum dv_opcode opcode, uint32_t to, uint32_t from,
	uint32_t bytes)
{
	struct dv_sge sge = {(uintptr_t)s.local + to, bytes, s.local_mr.lkey};

	dv_post(s.sq, opcode, (uintptr_t)there->base + from, there->rkey, &sge, 1, DV_CE_ALWAYS);
}

static void do_all(unsigned count)
{
	dv_ring(s.sq);
	while (count--)
		assert_int_equal(side_reap(&s), 0);
}

/*
 * Returns once the NIC moves the bytes of READs, or of WRITEs, through the mapping; before that the
 * kernel moves them.
 */
static void until_mapped(enum dv_opcode opcode)
{
	uint64_t end = now_ns() + PATIENCE_NS;

	post_in(&mr, opcode, 0, 0, 1);
	do_all(1);
	while (!soft_connectx_mapped(0, opcode == DV_WRITE)) {
		assert_true(now_ns() < end);
		usleep(50);
	}
}

static int shared(const uint8_t *at, uint64_t bytes, uint64_t *ret_offset)
{
	int fd = soft_connectx_shared(at, bytes, ret_offset);

	if (fd >= 0)
		close(fd);
	return fd;
}

static void only_whole_files_that_cannot_shrink_are_mapped(void **state)
{
	int sealed = new_file(8 * PAGE, F_SEAL_SHRINK), other = new_file(8 * PAGE, F_SEAL_SHRINK);
	int loose = new_file(8 * PAGE, F_SEAL_GROW);
	uint8_t *at = mmap(NULL, 16 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t offset = 77;

	map(sealed, 2 * PAGE, 3 * PAGE, at, MAP_SHARED);
	assert_true(shared(at, 3 * PAGE, &offset) >= 0);
	assert_int_equal(offset, 2 * PAGE);
	assert_true(shared(at + PAGE + 10, PAGE, &offset) >= 0);
	assert_int_equal(offset, 3 * PAGE + 10);
	/* refused: the range is one byte longer than the mapping */
	assert_true(shared(at, 3 * PAGE + 1, &offset) < 0);
	assert_true(shared(at - 1, 2, &offset) < 0);
	/*
	 * A second mapping follows: adjacent in the same file; not adjacent in it; of another file.
	 */
	map(sealed, 5 * PAGE, PAGE, at + 3 * PAGE, MAP_SHARED);
	assert_true(shared(at + PAGE, 3 * PAGE, &offset) >= 0);
	assert_int_equal(offset, 3 * PAGE);
	map(sealed, 6 * PAGE, PAGE, at + 3 * PAGE, MAP_SHARED);
	assert_true(shared(at + PAGE, 3 * PAGE, &offset) < 0);
	map(other, 5 * PAGE, PAGE, at + 3 * PAGE, MAP_SHARED);
	assert_true(shared(at + PAGE, 3 * PAGE, &offset) < 0);
	assert_true(shared(at + 3 * PAGE, PAGE, &offset) >= 0);
	/*
	 * Past the file's end, a private copy, no file, a file that can shrink, no descriptor: none
	 * can be mapped.
	 */
	map(sealed, 7 * PAGE, 2 * PAGE, at, MAP_SHARED);
	assert_true(shared(at, PAGE, &offset) >= 0);
	assert_true(shared(at, 2 * PAGE, &offset) < 0);
	map(sealed, 0, 4 * PAGE, at, MAP_PRIVATE);
	assert_true(shared(at, PAGE, &offset) < 0);
	map(-1, 0, 4 * PAGE, at, MAP_PRIVATE | MAP_ANONYMOUS);
	assert_true(shared(at, PAGE, &offset) < 0);
	map(-1, 0, 4 * PAGE, at, MAP_SHARED | MAP_ANONYMOUS);
	assert_true(shared(at, PAGE, &offset) < 0);
	map(loose, 0, 4 * PAGE, at, MAP_SHARED);
	assert_true(shared(at, PAGE, &offset) < 0);
	map(sealed, 0, 4 * PAGE, at, MAP_SHARED);
	close(sealed);
	assert_true(shared(at, PAGE, &offset) < 0);
	close(other);
	close(loose);
	munmap(at, 16 * PAGE);
}

static void reads_get_the_bytes_at_their_place_in_the_file(void **state)
{
	until_mapped(DV_READ);
	for (unsigned i = 0; i < 32; i++)
		post_in(&mr, DV_READ, i * 2 * PAGE, i * 5000, PAGE + i);
	do_all(32);
	for (unsigned i = 0; i < 32; i++) {
		assert_memory_equal(s.local + i * 2 * PAGE, mapped + i * 5000, PAGE + i);
		assert_int_equal(s.local[i * 2 * PAGE + PAGE + i], UNTOUCHED);
	}
	/*
	 * The bytes of an MR can be read even after their owner unmapped them, as with pinned
	 * memory.
	 */
	munmap(mapped + 3 * PAGE, PAGE);
	post_in(&mr, DV_READ, 0, 3 * PAGE, PAGE);
	do_all(1);
	for (unsigned i = 0; i < PAGE; i++)
		assert_int_equal(s.local[i], (uint8_t)(3 * 17 + i * 5 + 2));
}

static void after_an_unmapped_page_no_mapped_memory_is_read(void **state)
{
	until_mapped(DV_READ);
	memset(s.local, UNTOUCHED, PAGE);
	for (unsigned i = 0; i < 3; i++)
		post_in(&s.remote_mr, DV_READ, i * PAGE, i * PAGE, PAGE);
	for (unsigned i = 3; i < 6; i++)
		post_in(&mr, DV_READ, i * PAGE, i * PAGE, PAGE);
	assert_int_equal(mprotect(s.remote + PAGE, PAGE, PROT_NONE), 0);
	dv_ring(s.sq);
	assert_int_equal(side_reap(&s), 0);
	assert_int_equal(side_reap(&s), DV_SYNDROME_REMOTE_ACCESS);
	for (unsigned i = 2; i < 6; i++)
		assert_int_equal(side_reap(&s), DV_SYNDROME_FLUSHED);
	for (unsigned i = 2 * PAGE; i < 6 * PAGE; i++)
		assert_int_equal(s.local[i], UNTOUCHED);
}

static void rights_and_bounds_are_those_of_the_region(void **state)
{
	until_mapped(DV_READ);
	post_in(&mr, DV_READ, 0, SIDE_BYTES - PAGE, PAGE);
	do_all(1);
	/* the file continues behind this offset, the MR does not */
	post_in(&mr, DV_READ, PAGE, SIDE_BYTES - PAGE + 1, PAGE);
	dv_ring(s.sq);
	assert_int_equal(side_reap(&s), DV_SYNDROME_REMOTE_ACCESS);
	assert_int_equal(s.local[PAGE], UNTOUCHED);
}

static void deregistered_memory_is_never_read_later(void **state)
{
	struct dv_address here, there;
	uint32_t big = SIDE_BYTES / 2, failed = 0;
	struct dv_sq *unused;

	for (unsigned round = 0; round < 300; round++) {
		memset(mapped, 0xaa, SIDE_BYTES);
		post_in(&mr, DV_READ, 0, 0, big);
		dv_ring(s.sq);
		for (unsigned spin = 0; spin < round * 997 % 60000; spin++)
			dv_owner_before_cqe();
		good(dv_mr_deregister(s.far, &mr));
		memset(mapped + big - PAGE, 0xbb, PAGE);
		if (side_reap(&s) == 0)
			for (unsigned i = 0; i < big; i++)
				assert_int_equal(s.local[i], 0xaa);
		else
			failed++;
		good(dv_mr_register(s.far,
			&(struct dv_memory){.base = mapped,
				.length = SIDE_BYTES,
				.access = DV_LOCAL_WRITE | DV_REMOTE_READ | DV_REMOTE_WRITE,
				.memfd = -1},
			&mr));
		side_renew(s.near, &s.cq, &s.hot, &s.sq);
		side_renew(s.far, &s.answers_cq, &s.answers[1], &unused);
		dv_qp_address(s.hot, &here);
		dv_qp_address(s.answers[1], &there);
		good(dv_qp_connect(s.answers[1], &here));
		good(dv_qp_connect(s.hot, &there));
	}
	assert_true(failed > 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(only_whole_files_that_cannot_shrink_are_mapped),
		CASE(reads_get_the_bytes_at_their_place_in_the_file),
		CASE(after_an_unmapped_page_no_mapped_memory_is_read),
		CASE(rights_and_bounds_are_those_of_the_region),
		CASE(deregistered_memory_is_never_read_later),
	};

	setenv("SOFT_CONNECTX_DEVICES", "2", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
