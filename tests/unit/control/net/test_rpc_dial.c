/* SPDX-License-Identifier: Apache-2.0 */
/* rpc.c: how often a name that cannot be resolved is logged, by an argument as time; queries. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <event2/dns.h>
#include <event2/event.h>

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

	(void)state;
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

	(void)state;
	for (unsigned i = 0; i < 10000; i++) {
		snprintf(name, sizeof(name), "name-%u", i);
		lines += rpc_unresolved_line(&rpc, name, START + i * SECOND / 20);
	}
	assert_int_equal(lines, RPC_UNRESOLVED);
}

static unsigned resolved;

static void count_resolved(void *context, const char *error, const struct addrinfo *found)
{
	(void)context;
	assert_non_null(error);
	assert_null(found);
	resolved++;
}

/* The name server never answers: one query is cancelled, the other one ends with the resolver. */
static void a_cancelled_query_calls_nothing(void **state)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(at);
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct event_base *base = event_base_new();
	struct net_resolver *resolver = net_resolver_new(base);
	struct evdns_base *dns = (struct evdns_base *)(void *)resolver;
	struct net_query *query[2];

	(void)state;
	assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
	evdns_base_clear_nameservers_and_suspend(dns);
	assert_int_equal(
		evdns_base_nameserver_sockaddr_add(dns, (struct sockaddr *)&at, bytes, 0), 0);
	evdns_base_resume(dns);
	for (unsigned i = 0; i < 2; i++) {
		query[i] = net_resolve(resolver, "silent.example", 7, count_resolved, NULL);
		assert_non_null(query[i]);
	}
	net_resolve_cancel(query[0]);
	event_base_loop(base, EVLOOP_NONBLOCK);
	assert_int_equal(resolved, 0);
	net_resolver_free(resolver);
	event_base_loop(base, EVLOOP_NONBLOCK);
	assert_int_equal(resolved, 1);
	event_base_free(base);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_name_is_logged_at_once_and_then_at_growing_intervals),
		cmocka_unit_test(any_number_of_names_cause_few_lines),
		cmocka_unit_test(a_cancelled_query_calls_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
