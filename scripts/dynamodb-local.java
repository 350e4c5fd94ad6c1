// Starts DynamoDB Local in memory on the loopback address only. Its own main listens on every interface, which a test
// server without authentication must not do. Run by scripts/dynamodb-local.sh and localstack's plugin; the arguments are the
// port and, for tables apart by access key and region, "separate".

import com.amazonaws.services.dynamodbv2.local.server.LocalDynamoDBRequestHandler;
import com.amazonaws.services.dynamodbv2.local.server.LocalDynamoDBServerHandler;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import org.eclipse.jetty.server.Server;

class DynamoDBLocal {
    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[0]);
        boolean sharedDb = !(args.length > 1 && args[1].equals("separate"));
        boolean inMemory = true, delayTransientStatuses = false;
        var requests = new LocalDynamoDBRequestHandler(0, inMemory, null, sharedDb, delayTransientStatuses);
        var server = new Server(new InetSocketAddress(InetAddress.getByName("127.0.0.1"), port));
        server.setHandler(new LocalDynamoDBServerHandler(requests, null));
        server.start();
        server.join();
    }
}
