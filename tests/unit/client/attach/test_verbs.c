/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that a client registers with the engine's NICs: what it gives back, and when it begins
 * anew or ends. libibverbs and the engine's socket are stubs.
 */

#include <dlfcn.h>

#define dlopen stub_dlopen
#define dlsym stub_dlsym
#define session_ask stub_session_ask
#define session_ended stub_session_ended

static void *stub_dlopen(const char *name, int flags);
static void *stub_dlsym(void *library, const char *name);

#include "engine/client/attach/verbs.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { RAILS = 2, EXTENTS = 4, SHIFT = 16 };

static struct status_segment status;
static uint32_t stop;
static struct client_session session;
static unsigned char memory_of[EXTENTS << SHIFT];
static struct memory memory = {.base = memory_of, .bytes = sizeof(memory_of), .memfd = -1};

static struct {
	unsigned loans;   /* begun so far */
	unsigned refuse;  /* number of LENDs to refuse with -EAGAIN */
	int loan;         /* the engine's end */
	unsigned devices; /* open now */
	unsigned regs;    /* number of registrations so far, all threads */
	unsigned at;      /* what happens at this registration: `happens` */
	void (*happens)(void);
	int reg_errno;              /* not 0: the registration of `at` fails */
	unsigned imports, imported; /* requests, and those that named registrations */
	bool ended;
	enum ibv_fork_status fork_status;
	bool fork_unknown, dmabuf_unknown;
	unsigned dmabufs;
	int fork_rc;
	unsigned fork_inits;
} world;

/* ---- stubs ----------------------------------------------------------------------------------- */

bool stub_session_ended(struct client_session *s)
{
	return s->dead || __atomic_load_n(&world.ended, __ATOMIC_SEQ_CST);
}

static void lend_answer(struct session_call *call)
{
	int ends[2];

	call->fds = 0;
	if (call->a == 0) {
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
		world.loan = ends[0];
		call->fd[call->fds++] = ends[1];
		world.loans++;
		shm_store(&status.lent_back, 0);
	}
	call->fd[call->fds++] = open("/dev/null", O_RDONLY);
	__atomic_add_fetch(&world.devices, 1, __ATOMIC_SEQ_CST);
	call->a = 7;
	call->b = SHIFT;
}

int stub_session_ask(struct client_session *s, struct session_call *call)
{
	char byte;

	assert_ptr_equal(s, &session);
	if (call->kind == ATTACH_LEND) {
		if (world.refuse && world.refuse--)
			return error_set(-EAGAIN, "busy");
		lend_answer(call);
		return 0;
	}
	assert_int_equal(call->kind, ATTACH_REGION_IMPORT);
	assert_int_equal(world.devices, 0);
	assert_int_equal(recv(world.loan, &byte, 1, 0), 1);
	assert_int_equal(recv(world.loan, &byte, 1, 0), 0);
	close(world.loan);
	world.loan = -1;
	world.imports++;
	if (!call->b)
		return error_set(-EINVAL, "nothing");
	world.imported++;
	call->a = REGION_CLIENT_0;
	call->fds = 0;
	return 0;
}

static struct ibv_context *import_device(int fd)
{
	close(fd);
	return calloc(1, sizeof(struct ibv_context));
}

static int close_device(struct ibv_context *context)
{
	free(context);
	__atomic_sub_fetch(&world.devices, 1, __ATOMIC_SEQ_CST);
	return 0;
}

static struct ibv_pd *import_pd(struct ibv_context *context, uint32_t handle)
{
	struct ibv_pd *pd = calloc(1, sizeof(*pd));

	assert_int_equal(handle, 7);
	pd->context = context;
	return pd;
}

static void unimport_pd(struct ibv_pd *pd)
{
	free(pd);
}

/*
 * Counts a registration; what happens at it has happened when another thread gets the next number,
 * so that it is known how many more there may be.
 */
static unsigned next_reg(void)
{
	static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
	unsigned n;

	pthread_mutex_lock(&one);
	n = ++world.regs;
	if (n == world.at && world.happens)
		world.happens();
	pthread_mutex_unlock(&one);
	return n;
}

static struct ibv_mr *reg_mr(
	struct ibv_pd *pd, void *at, size_t bytes, uint64_t iova, unsigned access)
{
	unsigned n = next_reg();
	struct ibv_mr *mr = calloc(1, sizeof(*mr));

	assert_int_equal(iova, (uintptr_t)at);
	assert_int_equal(bytes, 1u << SHIFT);
	assert_false(access & (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE));
	if (n == world.at && world.reg_errno) {
		free(mr);
		errno = world.reg_errno;
		return NULL;
	}
	mr->handle = n;
	mr->lkey = n << 8;
	return mr;
}

static struct ibv_mr *reg_dmabuf_mr(
	struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access)
{
	assert_int_equal(fd, memory.dmabuf);
	assert_int_equal(offset - memory.offset, iova - (uintptr_t)memory_of);
	world.dmabufs++;
	return reg_mr(pd, (void *)(uintptr_t)iova, bytes, iova, (unsigned)access);
}

static void unimport_mr(struct ibv_mr *mr)
{
	free(mr);
}

static int fork_init(void)
{
	world.fork_inits++;
	return world.fork_rc;
}

static enum ibv_fork_status is_fork_initialized(void)
{
	return world.fork_status;
}

static void *stub_dlopen(const char *name, int flags)
{
	(void)name, (void)flags;
	return &world;
}

static void *stub_dlsym(void *library, const char *name)
{
	static const struct {
		const char *name;
		void (*function)(void);
	} functions[] = {
		{"ibv_import_device", (void (*)(void))import_device},
		{"ibv_close_device", (void (*)(void))close_device},
		{"ibv_import_pd", (void (*)(void))import_pd},
		{"ibv_unimport_pd", (void (*)(void))unimport_pd},
		{"ibv_reg_mr_iova2", (void (*)(void))reg_mr},
		{"ibv_reg_dmabuf_mr", (void (*)(void))reg_dmabuf_mr},
		{"ibv_unimport_mr", (void (*)(void))unimport_mr},
		{"ibv_fork_init", (void (*)(void))fork_init},
		{"ibv_is_fork_initialized", (void (*)(void))is_fork_initialized},
	};

	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++)
		if (!strcmp(functions[i].name, name) &&
			!(world.fork_unknown && !strcmp(name, "ibv_is_fork_initialized")) &&
			!(world.dmabuf_unknown && !strcmp(name, "ibv_reg_dmabuf_mr")))
			return (void *)(uintptr_t)functions[i].function;
	return NULL;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static int setup(void **state)
{
	memset(&status, 0, sizeof(status));
	memset(&world, 0, sizeof(world));
	memset(&lib, 0, sizeof(lib));
	world.loan = -1;
	memory.dmabuf = -1;
	world.fork_status = IBV_FORK_UNNEEDED;
	stop = 0;
	session = (struct client_session){
		.fd = -1, .pidfd = -1, .stop = &stop, .status = &status, .rails = RAILS};
	(void)lib_has(); /* so that later calls do not load it anew */
	memset(&lib, 0, sizeof(lib));
	lib_load();
	return 0;
}

static int add(void)
{
	uint16_t region = 0;
	int rc =
		verbs_region_add(&session, &memory, clock_monotonic_ns() + 10000000000ull, &region);

	assert_int_equal(world.devices, 0);
	assert_int_equal(rc ? 0 : REGION_CLIENT_0, region);
	return rc;
}

static void devices_are_given_back_before_the_engine_gets_the_keys(void **state)
{
	assert_int_equal(add(), 0);
	assert_int_equal(world.regs, RAILS * EXTENTS);
	assert_int_equal(world.imported, 1);
	assert_int_equal(world.loans, 1);
}

static void memory_of_a_device_is_registered_by_its_dma_buf(void **state)
{
	memory.dmabuf = 9;
	memory.offset = 24;
	assert_int_equal(add(), 0);
	assert_int_equal(world.dmabufs, RAILS * EXTENTS);
	world.dmabuf_unknown = true;
	memset(&lib, 0, sizeof(lib));
	lib_load();
	assert_int_equal(add(), -EOPNOTSUPP);
	assert_non_null(strstr(pc_error(), "ibv_reg_dmabuf_mr"));
	memory.dmabuf = -1;
	assert_int_equal(add(), 0);
}

static void an_engine_that_is_busy_is_asked_again(void **state)
{
	world.refuse = 3;
	assert_int_equal(add(), 0);
	assert_int_equal(world.loans, 1);
	assert_int_equal(world.imports, 1);
}

static void wants_back(void)
{
	shm_store(&status.lent_back, 1);
}

static void it_begins_anew_when_the_engine_wants_its_nics_back(void **state)
{
	world.at = 3;
	world.happens = wants_back;
	assert_int_equal(add(), 0);
	assert_int_equal(world.loans, 2);
	assert_int_equal(world.imports, 2);
	assert_int_equal(world.imported, 1);
	assert_in_range(world.regs, RAILS * EXTENTS + 3, RAILS * EXTENTS + 3 + RAILS);
}

static void it_begins_anew_when_a_nic_dies(void **state)
{
	world.at = 2;
	world.reg_errno = EIO;
	assert_int_equal(add(), 0);
	assert_int_equal(world.imported, 1);
	assert_int_equal(world.loans, 2);
}

static void a_lack_of_memory_ends_it(void **state)
{
	world.at = 1;
	world.reg_errno = ENOMEM;
	assert_int_equal(add(), -ENOMEM);
	assert_non_null(strstr(pc_error(), "ulimit -l unlimited"));
	assert_int_equal(world.imported, 0);
	assert_int_equal(world.imports, 1);
}

static void stops(void)
{
	shm_store(&stop, 1);
}

static void ends(void)
{
	__atomic_store_n(&world.ended, true, __ATOMIC_SEQ_CST);
}

static void it_ends_with_the_next_extent_when_the_session_is_closed_or_dead(void **state)
{
	world.at = 2;
	world.happens = stops;
	assert_int_equal(add(), -ECANCELED);
	assert_in_range(world.regs, 2, 2 + RAILS);
	assert_int_equal(world.imported, 0);
	setup(state);
	world.at = 2;
	world.happens = ends;
	assert_int_equal(add(), -ECANCELED);
	assert_in_range(world.regs, 2, 2 + RAILS);
	assert_int_equal(world.imported, 0);
}

static void after_fork_nics_write_into_the_parent(void **state)
{
	assert_int_equal(world.fork_inits, 0); /* a kernel that copies pinned pages */
	world.fork_status = IBV_FORK_DISABLED;
	memset(&lib, 0, sizeof(lib));
	lib_load();
	assert_int_equal(world.fork_inits, 1);
	assert_int_equal(add(), 0);
	world.fork_unknown = true; /* rdma-core before version 35 */
	memset(&lib, 0, sizeof(lib));
	lib_load();
	assert_int_equal(world.fork_inits, 2);
	assert_int_equal(add(), 0);
	/* other code of the process has registered memory before */
	world.fork_rc = EINVAL;
	memset(&lib, 0, sizeof(lib));
	lib_load();
	assert_int_equal(add(), -EOPNOTSUPP);
	assert_non_null(strstr(pc_error(), "RDMAV_FORK_SAFE=1"));
	assert_int_equal(world.loans, 2);
}

#define CASE(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(devices_are_given_back_before_the_engine_gets_the_keys),
		CASE(memory_of_a_device_is_registered_by_its_dma_buf),
		CASE(an_engine_that_is_busy_is_asked_again),
		CASE(it_begins_anew_when_the_engine_wants_its_nics_back),
		CASE(it_begins_anew_when_a_nic_dies),
		CASE(a_lack_of_memory_ends_it),
		CASE(it_ends_with_the_next_extent_when_the_session_is_closed_or_dead),
		CASE(after_fork_nics_write_into_the_parent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
