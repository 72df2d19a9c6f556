/* SPDX-License-Identifier: Apache-2.0 */
/* rpc.c: how often a name that cannot be resolved is logged, by an argument as time; queries. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <event2/event.h>
#include <pthread.h>

#include "engine/control/net/rpc.c"

#define SECOND 1000000000ull
#define START (10000 * SECOND)

static unsigned lines_in(struct rpc *rpc, const char *name, uint64_t from_s, uint64_t to_s)
{
	unsigned lines = 0;

	for (uint64_t now_s = from_s; now_s < to_s; now_s++)
		lines += rpc_unresolved_line(rpc, name, START + now_s * SECOND);
	return lines;
}

static void a_name_is_logged_at_once_and_then_at_growing_intervals(void **state)
{
	struct rpc rpc = {0};

	assert_true(rpc_unresolved_line(&rpc, "a", START));
	assert_false(rpc_unresolved_line(&rpc, "a", START + SECOND / 2));
	assert_in_range(lines_in(&rpc, "a", 1, 86400), 30, 40);
	/* after a long time in which it was not tried, it is new */
	assert_true(rpc_unresolved_line(&rpc, "a", START + 200000 * SECOND));
}

static void any_number_of_names_cause_few_lines(void **state)
{
	struct rpc rpc = {0};
	unsigned lines = 0;
	char name[16];

	for (unsigned i = 0; i < 10000; i++) {
		snprintf(name, sizeof(name), "name-%u", i);
		lines += rpc_unresolved_line(&rpc, name, START + i * SECOND / 20);
	}
	assert_int_equal(lines, RPC_UNRESOLVED);
}

/* ---- names, with a resolver of the test ------------------------------------------------------ */

/* Lookups of "slow" that are in progress; `slow_free` of them return. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned slow_now, slow_free, slow_freed;

int __real_getaddrinfo(
	const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **ret);
int __wrap_getaddrinfo(
	const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **ret);
void __real_freeaddrinfo(struct addrinfo *list);
void __wrap_freeaddrinfo(struct addrinfo *list);

int __wrap_getaddrinfo(
	const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **ret)
{
	if (strcmp(host, "none") == 0)
		return EAI_NONAME;
	if (strcmp(host, "slow") == 0) {
		pthread_mutex_lock(&lock);
		slow_now++;
		pthread_cond_broadcast(&changed);
		while (!slow_free)
			pthread_cond_wait(&changed, &lock);
		slow_free--;
		slow_now--;
		pthread_mutex_unlock(&lock);
	}
	return __real_getaddrinfo("127.0.0.9", service, hints, ret);
}

void __wrap_freeaddrinfo(struct addrinfo *list)
{
	__real_freeaddrinfo(list);
	pthread_mutex_lock(&lock);
	slow_freed++;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static void slow_wait(unsigned count)
{
	pthread_mutex_lock(&lock);
	while (slow_now != count)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

static void slow_release(unsigned count)
{
	pthread_mutex_lock(&lock);
	slow_free += count;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

/* Waits until as many lists of addresses were freed, by whichever thread. */
static void freed_wait(unsigned count)
{
	pthread_mutex_lock(&lock);
	while (slow_freed != count)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

static unsigned found_count, failed_count;

static void count_resolved(void *context, const char *error, const struct addrinfo *found)
{
	const struct sockaddr_in *at = found ? (const void *)found->ai_addr : NULL;

	assert_ptr_equal(context, &found_count);
	assert_true(!error == !!found);
	if (error)
		assert_string_equal(error, gai_strerror(EAI_NONAME));
	if (at)
		assert_int_equal(ntohl(at->sin_addr.s_addr), 0x7f000009);
	if (at)
		assert_int_equal(ntohs(at->sin_port), 7);
	found_count += found != NULL;
	failed_count += error != NULL;
}

static struct net_query *ask(struct net_resolver *resolver, const char *host)
{
	struct net_query *query = net_resolve(resolver, host, 7, count_resolved, &found_count);

	assert_non_null(query);
	return query;
}

static void answers_are(struct event_base *base, unsigned found, unsigned failed)
{
	while (found_count != found || failed_count != failed)
		event_base_loop(base, EVLOOP_ONCE);
}

static int names_setup(void **state)
{
	found_count = failed_count = slow_freed = 0;
	assert_int_equal(slow_now, 0);
	assert_int_equal(slow_free, 0);
	return 0;
}

static void a_slow_name_delays_no_other(void **state)
{
	struct event_base *base = event_base_new();
	struct net_resolver *resolver = net_resolver_new(base);

	ask(resolver, "slow");
	ask(resolver, "slow");
	slow_wait(2);
	ask(resolver, "name");
	ask(resolver, "none");
	answers_are(base, 1, 1);
	slow_release(2);
	answers_are(base, 3, 1);
	net_resolver_free(resolver);
	event_base_free(base);
}

/* Each thread waits for a slow name: the next names wait, and are looked up when one returns. */
static void names_are_looked_up_a_few_at_a_time(void **state)
{
	struct event_base *base = event_base_new();
	struct net_resolver *resolver = net_resolver_new(base);
	struct net_query *last;

	for (unsigned i = 0; i < 16; i++)
		ask(resolver, "slow");
	slow_wait(16);
	ask(resolver, "slow");
	last = ask(resolver, "name");
	ask(resolver, "none");
	event_base_loop(base, EVLOOP_NONBLOCK);
	assert_int_equal(found_count + failed_count, 0);
	net_resolve_cancel(last);
	slow_release(1);
	slow_wait(16); /* the one that waited */
	slow_release(16);
	answers_are(base, 17, 1);
	net_resolver_free(resolver);
	event_base_free(base);
}

/* A query that was cancelled calls nothing; neither that nor the end of the resolver waits. */
static void a_thread_that_sits_in_the_resolver_outlives_it(void **state)
{
	struct event_base *base = event_base_new();
	struct net_resolver *resolver = net_resolver_new(base);
	struct net_query *query;

	query = ask(resolver, "slow");
	ask(resolver, "slow");
	slow_wait(2);
	net_resolve_cancel(query);
	slow_release(1);
	while (!slow_freed && !found_count) /* which of the two has returned is open */
		event_base_loop(base, EVLOOP_ONCE);
	net_resolver_free(resolver);
	event_base_free(base);
	slow_release(1);
	freed_wait(2);
	assert_in_range(found_count, 0, 1);
	assert_int_equal(failed_count, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_name_is_logged_at_once_and_then_at_growing_intervals),
		cmocka_unit_test(any_number_of_names_cause_few_lines),
		cmocka_unit_test_setup(a_slow_name_delays_no_other, names_setup),
		cmocka_unit_test_setup(names_are_looked_up_a_few_at_a_time, names_setup),
		cmocka_unit_test_setup(a_thread_that_sits_in_the_resolver_outlives_it, names_setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
