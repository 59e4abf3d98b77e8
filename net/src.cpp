// Asio's and Beast's own code, compiled once here and not in every file that includes them
// (BOOST_ASIO_SEPARATE_COMPILATION, BOOST_BEAST_SEPARATE_COMPILATION).

#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
