/* SPDX-License-Identifier: Apache-2.0 */
/* Tests which addresses are the same host, and how names are looked up. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <netdb.h>
#include <netinet/in.h>

#include "engine/control/net/address.h"

static struct sockaddr_storage address_of(const char *text, uint16_t port)
{
	struct sockaddr_storage address;
	socklen_t bytes;

	assert_int_equal(address_literal(text, port, &address, &bytes), 0);
	return address;
}

static bool same(const char *a, const char *b)
{
	struct sockaddr_storage of_a = address_of(a, 1), of_b = address_of(b, 2);

	return address_same((struct sockaddr *)&of_a, (struct sockaddr *)&of_b);
}

static void an_address_is_the_same_in_both_families(void **state)
{
	assert_true(same("10.0.0.1", "10.0.0.1"));
	assert_true(same("::ffff:10.0.0.1", "10.0.0.1"));
	assert_true(same("10.0.0.1", "::ffff:10.0.0.1"));
	assert_true(same("fd00::1", "fd00::1"));
	assert_false(same("10.0.0.1", "10.0.0.2"));
	assert_false(same("::ffff:10.0.0.1", "10.0.0.2"));
	assert_false(same("::10.0.0.1", "10.0.0.1"));
	assert_false(same("fd00::1", "fd00::2"));
}

static void an_address_of_another_family_is_no_host(void **state)
{
	struct sockaddr_storage v4 = address_of("10.0.0.1", 1), other = v4;

	other.ss_family = AF_PACKET;
	assert_false(address_same((struct sockaddr *)&other, (struct sockaddr *)&v4));
	assert_false(address_same((struct sockaddr *)&v4, (struct sockaddr *)&other));
	assert_false(address_same((struct sockaddr *)&other, (struct sockaddr *)&other));
}

static void an_address_is_looked_up_with_its_port(void **state)
{
	struct addrinfo *list;

	assert_int_equal(address_look_up("127.0.0.3", 31998, &list), 0);
	assert_int_equal(list->ai_family, AF_INET);
	assert_int_equal(list->ai_socktype, SOCK_STREAM);
	assert_int_equal(ntohs(((struct sockaddr_in *)(void *)list->ai_addr)->sin_port), 31998);
	assert_null(list->ai_next);
	freeaddrinfo(list);
	assert_int_not_equal(address_look_up("a..b", 1, &list), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_address_is_the_same_in_both_families),
		cmocka_unit_test(an_address_of_another_family_is_no_host),
		cmocka_unit_test(an_address_is_looked_up_with_its_port),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
